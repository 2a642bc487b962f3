"""save of replicas against rank 0 alone"""
from tests.worlds.ranks import main
def run(rank, world, folder, place):
    import time, torch, unmoor, os
    from torch import distributed as dist
    torch.manual_seed(0)
    m=torch.nn.Sequential(*[torch.nn.Linear(2048,2048) for _ in range(12)])  # 200 MB
    o=torch.optim.Adam(m.parameters()); m(torch.ones(1,2048)).sum().backward(); o.step()
    out={}
    for name in ("alone","world","alone","world"):
        dist.barrier(); a=time.perf_counter()
        if name=="alone":
            if rank==0: unmoor.save(f"{place}/a.pt",model=m,optimizer=o,group=None)
        else: unmoor.save(f"{place}/a.pt",model=m,optimizer=o)
        dist.barrier(); out.setdefault(name,[]).append(round(time.perf_counter()-a,3))
    import resource
    return out
if __name__=="__main__": main(run)
