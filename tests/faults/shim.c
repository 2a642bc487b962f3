/* Faults for a process and its children, by LD_PRELOAD: what they do to the files of one folder is counted, logged,
 * refused, cut short, or is the last thing that they do.
 *
 * All of it is asked for in a page of memory that the processes share with the test (`struct control`; its twin in
 * Python is `Control` in control.py). Operations of all processes and threads are done one after the other under one
 * lock, so that their numbers are those of one row. What goes past the C library's names (a static program, a system
 * call of one's own) is not seen; tests/faults/test_shim.py holds the log against strace's.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

/* Those before `read` change the folder: they are numbered, and one can be the last. control.py reads this table. */
#define KINDS(X)                                                                                                       \
    X(open) X(write) X(truncate) X(allocate) X(fsync) X(fdatasync) X(sync_range) X(rename) X(link) X(symlink)          \
    X(unlink) X(mkdir) X(rmdir) X(copy) X(clone) X(map) X(msync) X(chmod) X(utime) X(mark)                             \
    X(read) X(open_read) X(close) X(lock) X(list) X(stat) X(statvfs)

#define NAMED(name) K_##name,
enum kind { KINDS(NAMED) K_COUNT };
#undef NAMED
#define CHANGES K_read

enum { BEFORE, AFTER, HALF };
enum { SELF, MAIN, OTHERS, ALL };
enum { CREATED = 1, CUT = 2, EXCHANGED = 4, FOLDER = 8, FAILED_ON_PURPOSE = 16 };

struct rule {
    int32_t kind;  /* -1: whatever changes the folder, -2: all kinds */
    int32_t error;
    int64_t first; /* fails from the first-th of those that match on, counted from 1 */
    int64_t times; /* and that often; 0 for ever after */
    int64_t after_bytes; /* and only once that many bytes were written to the folder; -1 whatever was */
    char match[64]; /* and only paths that contain this */
    int64_t seen, failed;
};

#define RULES 8
#define PIDS 64

struct control {
    uint32_t size, armed, ready, killed;
    pthread_mutex_t lock;
    int64_t operations, written;
    int64_t kill_at;
    int32_t kill_when, kill_whom, main, pid_count;
    int64_t short_write, short_read, delay_us;
    int32_t log_data, rule_count;
    int64_t counts[32];
    int32_t pids[PIDS];
    struct rule rules[RULES];
    char folder[1024], log[1024];
};

struct entry { /* one record of the log: this, then two paths, then data */
    uint32_t magic, kind, flags;
    int32_t pid, tid, error;
    int64_t result, offset, length, inode, number;
    uint32_t path, other, data, pad;
};

static struct control *control;
static int log_file = -1;
static __thread int within;

#define REAL(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void note_process(void) {
    if (!control) return;
    int at = __atomic_fetch_add(&control->pid_count, 1, __ATOMIC_SEQ_CST);
    if (at < PIDS) control->pids[at] = getpid();
}

static void in_child(void) {
    within = 0;
    log_file = -1;
    if (control && control->armed) note_process();
}

__attribute__((constructor)) static void begin(void) {
    const char *place = getenv("UNMOOR_FAULTS");
    if (!place) return;
    int saved = errno;
    int file = (int)syscall(SYS_openat, AT_FDCWD, place, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    struct control *found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (found == MAP_FAILED) return;
    if (!found->ready) { /* the first process is alone */
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&found->lock, &how);
        found->size = sizeof *found;
        found->ready = 1;
    }
    control = found;
    if (!control->main) control->main = getpid();
    if (control->armed) note_process();
    pthread_atfork(NULL, NULL, in_child);
    errno = saved;
}

/* Where things are ------------------------------------------------------------------------------------------------- */

static int under(const char *path) {
    size_t n = strlen(control->folder);
    return n && !strncmp(path, control->folder, n) && (path[n] == '/' || !path[n]);
}

static int path_of(int file, char *out) { /* of an open file, if it is in the folder */
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n <= 0) return 0;
    out[n] = 0;
    return under(out);
}

static int place_of(int at, const char *path, char *out) { /* of a name, its last part not followed, if in the folder */
    char joined[2 * PATH_MAX], *end;
    if (!path) return 0;
    if (path[0] == '/') {
        if (strlen(path) >= PATH_MAX) return 0;
        strcpy(joined, path);
    } else {
        char link[40] = "/proc/self/cwd";
        if (at != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = readlink(link, joined, PATH_MAX - 1);
        if (n <= 0 || strlen(path) >= PATH_MAX) return 0;
        joined[n] = '/';
        strcpy(joined + n + 1, path);
    }
    end = joined + strlen(joined);
    while (end > joined + 1 && end[-1] == '/') *--end = 0;
    char *name = strrchr(joined, '/');
    if (!name || !name[1] || !strcmp(name + 1, ".") || !strcmp(name + 1, "..")) return realpath(joined, out) && under(out);
    *name++ = 0;
    char parent[PATH_MAX];
    if (!realpath(joined[0] ? joined : "/", parent) || strlen(parent) + strlen(name) + 2 > PATH_MAX) return 0;
    strcpy(out, strcmp(parent, "/") ? parent : "");
    strcat(strcat(out, "/"), name);
    return under(out);
}

/* What becomes of an operation ------------------------------------------------------------------------------------- */

struct op {
    enum kind kind;
    int on;     /* it is in the folder and holds the lock */
    int error;  /* it is to fail with this */
    int last;   /* the process ends after it */
    size_t most; /* no more bytes than this */
    uint32_t flags;
    int64_t offset, length, inode;
    const struct iovec *data;
    int pieces;
    char path[PATH_MAX], other[PATH_MAX];
};

static int watched(void) { return control && control->armed && !within; }

static void strike(void) {
    int me = getpid(), whom = control->kill_whom;
    control->killed = 1;
    if (whom == MAIN && control->main != me) {
        kill(control->main, SIGKILL);
        return;
    }
    if (whom == ALL || whom == OTHERS) {
        int n = control->pid_count < PIDS ? control->pid_count : PIDS;
        for (int i = 0; i < n; i++)
            if (control->pids[i] != me && control->pids[i] > 1) kill(control->pids[i], SIGKILL);
    }
    if (whom == OTHERS) return;
    syscall(SYS_kill, me, SIGKILL);
    for (;;) pause();
}

static int refusal(struct op *op) {
    int error = 0;
    for (int i = 0; i < control->rule_count && i < RULES; i++) {
        struct rule *rule = &control->rules[i];
        if (rule->kind >= 0 ? rule->kind != (int)op->kind : rule->kind == -1 && op->kind >= CHANGES) continue;
        if (rule->match[0] && !strstr(op->path, rule->match) && !strstr(op->other, rule->match)) continue;
        int64_t room = rule->after_bytes - control->written;
        if (rule->after_bytes >= 0 && room > 0) {
            if (op->kind == K_write && (int64_t)op->length > room && op->most > (size_t)room) op->most = (size_t)room;
            continue;
        }
        rule->seen++;
        if (rule->seen < rule->first || (rule->times && rule->failed >= rule->times)) continue;
        if (error) continue;
        rule->failed++;
        error = rule->error;
    }
    return error;
}

/* Whether the operation may be done; it has its number then, and the lock until leave(). */
static int enter(struct op *op) {
    int saved = errno;
    within = 1;
    if (pthread_mutex_lock(&control->lock) == EOWNERDEAD) pthread_mutex_consistent(&control->lock);
    op->on = 1;
    control->counts[op->kind]++;
    if (control->delay_us) usleep((useconds_t)control->delay_us);
    if (op->kind < CHANGES) {
        int64_t number = ++control->operations;
        if (control->kill_at && number == control->kill_at) {
            if (control->kill_when == BEFORE) strike();
            else op->last = 1;
            if (op->last && control->kill_when == HALF && op->kind == K_write && op->length > 1)
                op->most = (size_t)op->length / 2;
        }
    }
    if (op->kind == K_write && control->short_write && op->most > (size_t)control->short_write)
        op->most = (size_t)control->short_write;
    if (op->kind == K_read && control->short_read && op->most > (size_t)control->short_read)
        op->most = (size_t)control->short_read;
    op->error = refusal(op);
    if (op->error) op->flags |= FAILED_ON_PURPOSE;
    errno = saved;
    return !op->error;
}

static void put_whole(const struct iovec *pieces, int count) {
    for (int i = 0; i < count; i++) {
        const char *data = pieces[i].iov_base;
        size_t left = pieces[i].iov_len;
        while (left) {
            ssize_t n = syscall(SYS_write, log_file, data, left);
            if (n <= 0) return;
            data += n;
            left -= (size_t)n;
        }
    }
}

static void note(struct op *op, int64_t result, int error) {
    if (op->kind >= CHANGES || !control->log[0]) return;
    if (log_file < 0)
        log_file = (int)syscall(SYS_openat, AT_FDCWD, control->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    size_t bytes = 0, left = result > 0 && control->log_data ? (size_t)result : 0;
    struct iovec parts[1024];
    int count = 3;
    if (op->kind == K_write || op->kind == K_copy || op->kind == K_clone || op->kind == K_mark)
        for (int i = 0; i < op->pieces && left && count < 1024; i++) {
            parts[count] = op->data[i];
            if (parts[count].iov_len > left) parts[count].iov_len = left;
            left -= parts[count].iov_len;
            bytes += parts[count++].iov_len;
        }
    struct entry entry = {.magic = 0x746c6166, .kind = op->kind, .flags = op->flags, .pid = getpid(), .tid = gettid(),
        .error = error, .result = result, .offset = op->offset, .length = op->length, .inode = op->inode,
        .number = control->operations, .path = (uint32_t)strlen(op->path), .other = (uint32_t)strlen(op->other),
        .data = (uint32_t)bytes};
    parts[0] = (struct iovec){&entry, sizeof entry};
    parts[1] = (struct iovec){op->path, entry.path};
    parts[2] = (struct iovec){op->other, entry.other};
    put_whole(parts, count);
}

static void leave(struct op *op, int64_t result) {
    int error = op->error ? op->error : errno;
    if (op->kind == K_write && result > 0) control->written += result;
    note(op, result, result < 0 ? error : 0);
    if (op->last) strike();
    pthread_mutex_unlock(&control->lock);
    within = 0;
    errno = error;
}

static int64_t inode_of(int file) {
    struct stat64 found;
    return fstat64(file, &found) ? 0 : (int64_t)found.st_ino;
}

static int64_t inode_at(const char *path) {
    struct stat64 found;
    return lstat64(path, &found) ? 0 : (int64_t)found.st_ino;
}

/* An operation on an open file (FILE), on one name (NAME) or on two (PAIR): CALL is the real one; `op` may be used. */
#define ON_FILE(KIND, FILE, TYPE, BEFORE_IT, CALL)                                                                     \
    if (!watched()) return CALL;                                                                                       \
    struct op op = {.kind = KIND, .most = SIZE_MAX};                                                                   \
    int was = errno;                                                                                                   \
    if (!path_of(FILE, op.path)) { errno = was; return CALL; }                                                         \
    op.inode = inode_of(FILE);                                                                                         \
    errno = was;                                                                                                       \
    BEFORE_IT;                                                                                                         \
    TYPE made = enter(&op) ? CALL : (TYPE)-1;                                                                          \
    leave(&op, (int64_t)made);                                                                                         \
    return made

#define ON_NAME(KIND, AT, NAME, TYPE, FAILED, CALL)                                                                    \
    if (!watched()) return CALL;                                                                                       \
    struct op op = {.kind = KIND, .most = SIZE_MAX};                                                                   \
    int was = errno;                                                                                                   \
    if (!place_of(AT, NAME, op.path)) { errno = was; return CALL; }                                                    \
    op.inode = inode_at(op.path);                                                                                      \
    errno = was;                                                                                                       \
    TYPE made = enter(&op) ? CALL : (TYPE)FAILED;                                                                      \
    if (op.kind == K_mkdir && (int64_t)made == 0) op.inode = inode_at(op.path);                                        \
    leave(&op, (int64_t)made);                                                                                         \
    return made

#define ON_PAIR(KIND, AT, NAME, AT2, NAME2, FLAGS, CALL)                                                               \
    if (!watched()) return CALL;                                                                                       \
    struct op op = {.kind = KIND, .most = SIZE_MAX, .flags = FLAGS};                                                   \
    int was = errno;                                                                                                   \
    int one = place_of(AT, NAME, op.path), two = place_of(AT2, NAME2, op.other);                                       \
    errno = was;                                                                                                       \
    if (!one && !two) return CALL;                                                                                     \
    op.inode = inode_at(op.path);                                                                                      \
    errno = was;                                                                                                       \
    int made = enter(&op) ? CALL : -1;                                                                                 \
    leave(&op, made);                                                                                                  \
    return made

/* Opening ---------------------------------------------------------------------------------------------------------- */

static int opens(int at, const char *path, int flags, mode_t mode, int (*call)(int, const char *, int, mode_t)) {
    if (!watched()) return call(at, path, flags, mode);
    int changes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    struct op op = {.kind = changes ? K_open : K_open_read, .most = SIZE_MAX, .offset = flags};
    int was = errno;
    if (!place_of(at, path, op.path)) { errno = was; return call(at, path, flags, mode); }
    int fresh = flags & O_CREAT && !inode_at(op.path);
    errno = was;
    int made = enter(&op) ? call(at, path, flags, mode) : -1;
    was = errno;
    if (made >= 0) {
        op.inode = inode_of(made);
        op.flags |= (fresh ? CREATED : 0) | (!fresh && flags & O_TRUNC ? CUT : 0);
    }
    errno = was;
    leave(&op, made);
    return made;
}

static int real_openat(int at, const char *path, int flags, mode_t mode) {
    REAL(openat64);
    return real(at, path, flags, mode);
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

#define OPENS(NAME, AT_ARGUMENT, AT)                                                                                   \
    int NAME(AT_ARGUMENT const char *path, int flags, ...) {                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return opens(AT, path, flags, mode, real_openat);                                                              \
    }
#define NOTHING
#define AT_FIRST int at,
OPENS(open, NOTHING, AT_FDCWD)
OPENS(open64, NOTHING, AT_FDCWD)
OPENS(openat, AT_FIRST, at)
OPENS(openat64, AT_FIRST, at)
int __open_2(const char *path, int flags) { return opens(AT_FDCWD, path, flags, 0, real_openat); }
int __open64_2(const char *path, int flags) { return opens(AT_FDCWD, path, flags, 0, real_openat); }
int __openat_2(int at, const char *path, int flags) { return opens(at, path, flags, 0, real_openat); }
int __openat64_2(int at, const char *path, int flags) { return opens(at, path, flags, 0, real_openat); }
int creat(const char *path, mode_t mode) {
    return opens(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode, real_openat);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* C++ streams open by fopen, and then write by write and writev. */
static FILE *streams(const char *path, const char *mode, FILE *(*call)(const char *, const char *)) {
    if (!watched()) return call(path, mode);
    int plus = strchr(mode, '+') != NULL, flags = mode[0] == 'r' ? (plus ? O_RDWR : O_RDONLY) : O_WRONLY | O_CREAT;
    struct op op = {.kind = flags == O_RDONLY ? K_open_read : K_open, .most = SIZE_MAX, .offset = flags};
    int was = errno;
    if (!place_of(AT_FDCWD, path, op.path)) { errno = was; return call(path, mode); }
    int fresh = flags & O_CREAT && !inode_at(op.path);
    errno = was;
    FILE *made = enter(&op) ? call(path, mode) : NULL;
    was = errno;
    if (made) {
        op.inode = inode_of(fileno(made));
        op.flags |= (fresh ? CREATED : 0) | (!fresh && mode[0] == 'w' ? CUT : 0);
    }
    errno = was;
    leave(&op, made ? 0 : -1);
    return made;
}

FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    return streams(path, mode, real);
}
FILE *fopen64(const char *path, const char *mode) {
    REAL(fopen64);
    return streams(path, mode, real);
}

int close(int file) {
    REAL(close);
    if (!watched() || !control->rule_count) return real(file);
    struct op op = {.kind = K_close, .most = SIZE_MAX};
    int was = errno;
    int here = path_of(file, op.path);
    errno = was;
    if (!here) return real(file);
    enter(&op);
    int made = real(file);
    if (op.error) made = -1;
    leave(&op, made);
    return made;
}

/* Writing ---------------------------------------------------------------------------------------------------------- */

static ssize_t total(const struct iovec *pieces, int count) {
    ssize_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += (ssize_t)pieces[i].iov_len;
    return bytes;
}

/* No more than `most` bytes of `pieces`, in `cut`. */
static int at_most(const struct iovec *pieces, int count, size_t most, struct iovec *cut) {
    int made = 0;
    for (int i = 0; i < count && most && made < IOV_MAX; i++) {
        cut[made] = pieces[i];
        if (cut[made].iov_len > most) cut[made].iov_len = most;
        most -= cut[made++].iov_len;
    }
    return made;
}

/* `where` is -1 for where the file stands. */
static ssize_t writes(int file, const struct iovec *pieces, int count, off64_t where, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off64_t, int);
    static ssize_t (*plain)(int, const struct iovec *, int);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pwritev64v2");
    if (!plain) plain = (__typeof__(plain))dlsym(RTLD_NEXT, "writev");
#define WRITE(PIECES, COUNT) (where < 0 && !flags ? plain(file, PIECES, COUNT) : real(file, PIECES, COUNT, where, flags))
    if (!watched()) return WRITE(pieces, count);
    struct op op = {.kind = K_write, .most = SIZE_MAX, .data = pieces, .pieces = count};
    int was = errno;
    if (!path_of(file, op.path)) { errno = was; return WRITE(pieces, count); }
    op.inode = inode_of(file);
    op.length = total(pieces, count);
    errno = was;
    struct iovec cut[IOV_MAX];
    ssize_t made = -1;
    if (enter(&op)) made = WRITE(cut, at_most(pieces, count, op.most, cut));
    was = errno;
    op.offset = where < 0 ? lseek64(file, 0, SEEK_CUR) - (made > 0 ? made : 0) : where;
    errno = was;
    leave(&op, made);
    return made;
}

#define ONE(DATA, SIZE) &(struct iovec){(void *)(DATA), SIZE}, 1
ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    if (!watched()) return real(file, data, size);
    return writes(file, ONE(data, size), -1, 0);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t where) {
    REAL(pwrite64);
    if (!watched()) return real(file, data, size, where);
    return writes(file, ONE(data, size), where, 0);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t where) { return pwrite64(file, data, size, where); }
ssize_t writev(int file, const struct iovec *pieces, int count) { return writes(file, pieces, count, -1, 0); }
ssize_t pwritev(int file, const struct iovec *pieces, int count, off_t where) {
    return writes(file, pieces, count, where, 0);
}
ssize_t pwritev64(int file, const struct iovec *pieces, int count, off64_t where) {
    return writes(file, pieces, count, where, 0);
}
ssize_t pwritev2(int file, const struct iovec *pieces, int count, off_t where, int flags) {
    return writes(file, pieces, count, where, flags);
}
ssize_t pwritev64v2(int file, const struct iovec *pieces, int count, off64_t where, int flags) {
    return writes(file, pieces, count, where, flags);
}

/* What the kernel copies is read back for the log. */
static void copied(struct op *op, int file, off64_t where, ssize_t made, struct iovec *piece) {
    if (made <= 0 || !control->log[0] || !control->log_data) return;
    *piece = (struct iovec){malloc((size_t)made), (size_t)made};
    static int again;
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
    for (size_t done = 0; piece->iov_base && done < (size_t)made;) {
        ssize_t n = syscall(SYS_pread64, again, (char *)piece->iov_base + done, (size_t)made - done, where + (off64_t)done);
        if (n <= 0) break;
        done += (size_t)n;
    }
    syscall(SYS_close, again);
    op->data = piece;
    op->pieces = piece->iov_base ? 1 : 0;
}

ssize_t copy_file_range(int from, off64_t *start, int file, off64_t *where, size_t size, unsigned flags) {
    REAL(copy_file_range);
    if (!watched()) return real(from, start, file, where, size, flags);
    struct op op = {.kind = K_copy, .most = SIZE_MAX, .length = (int64_t)size};
    struct iovec piece = {0};
    int was = errno;
    if (!path_of(file, op.path)) { errno = was; return real(from, start, file, where, size, flags); }
    op.inode = inode_of(file);
    op.offset = where ? *where : lseek64(file, 0, SEEK_CUR);
    errno = was;
    ssize_t made = enter(&op) ? real(from, start, file, where, size, flags) : -1;
    was = errno;
    copied(&op, file, op.offset, made, &piece);
    errno = was;
    leave(&op, made);
    free(piece.iov_base);
    return made;
}

ssize_t sendfile64(int file, int from, off64_t *start, size_t size) {
    REAL(sendfile64);
    if (!watched()) return real(file, from, start, size);
    struct op op = {.kind = K_copy, .most = SIZE_MAX, .length = (int64_t)size};
    struct iovec piece = {0};
    int was = errno;
    if (!path_of(file, op.path)) { errno = was; return real(file, from, start, size); }
    op.inode = inode_of(file);
    op.offset = lseek64(file, 0, SEEK_CUR);
    errno = was;
    ssize_t made = enter(&op) ? real(file, from, start, size) : -1;
    was = errno;
    copied(&op, file, op.offset, made, &piece);
    errno = was;
    leave(&op, made);
    free(piece.iov_base);
    return made;
}
ssize_t sendfile(int file, int from, off_t *start, size_t size) { return sendfile64(file, from, start, size); }

#define FICLONE_ 0x40049409UL
#define FICLONERANGE_ 0x4020940dUL
int ioctl(int file, unsigned long request, ...) {
    REAL(ioctl);
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (!watched() || (request != FICLONE_ && request != FICLONERANGE_)) return real(file, request, argument);
    struct op op = {.kind = K_clone, .most = SIZE_MAX};
    struct iovec piece = {0};
    int was = errno;
    if (!path_of(file, op.path)) { errno = was; return real(file, request, argument); }
    op.inode = inode_of(file);
    errno = was;
    int made = enter(&op) ? real(file, request, argument) : -1;
    was = errno;
    struct stat64 found;
    int64_t size = made == 0 && !fstat64(file, &found) ? found.st_size : -1;
    copied(&op, file, 0, size, &piece);
    errno = was;
    leave(&op, made == 0 ? size : -1);
    free(piece.iov_base);
    return made;
}

int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    ON_FILE(K_truncate, file, int, op.length = size, real(file, size));
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }
int truncate64(const char *path, off64_t size) {
    REAL(truncate64);
    if (!watched()) return real(path, size);
    struct op op = {.kind = K_truncate, .most = SIZE_MAX, .length = size};
    int was = errno, here = place_of(AT_FDCWD, path, op.path);
    op.inode = here ? inode_at(op.path) : 0;
    errno = was;
    if (!here) return real(path, size);
    int made = enter(&op) ? real(path, size) : -1;
    leave(&op, made);
    return made;
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }
int fallocate64(int file, int mode, off64_t start, off64_t size) {
    REAL(fallocate64);
    ON_FILE(K_allocate, file, int, (op.offset = start, op.length = size), real(file, mode, start, size));
}
int fallocate(int file, int mode, off_t start, off_t size) { return fallocate64(file, mode, start, size); }
int posix_fallocate64(int file, off64_t start, off64_t size) { /* gives its error, and leaves errno alone */
    int was = errno, made = fallocate64(file, 0, start, size), error = errno;
    errno = was;
    return made ? error : 0;
}
int posix_fallocate(int file, off_t start, off_t size) { return posix_fallocate64(file, start, size); }

void *mmap64(void *near, size_t size, int protection, int flags, int file, off64_t start) {
    REAL(mmap64);
#define MAP real(near, size, protection, flags, file, start)
    if (!watched() || file < 0 || !(protection & PROT_WRITE) || !(flags & MAP_SHARED)) return MAP;
    struct op op = {.kind = K_map, .most = SIZE_MAX, .offset = start, .length = (int64_t)size};
    int was = errno;
    if (!path_of(file, op.path)) { errno = was; return MAP; }
    op.inode = inode_of(file);
    errno = was;
    void *made = enter(&op) ? MAP : MAP_FAILED;
    leave(&op, made == MAP_FAILED ? -1 : 0);
    return made;
}
void *mmap(void *near, size_t size, int protection, int flags, int file, off_t start) {
    return mmap64(near, size, protection, flags, file, start);
}

/* To the disk ------------------------------------------------------------------------------------------------------ */

int fsync(int file) {
    REAL(fsync);
    ON_FILE(K_fsync, file, int, (void)0, real(file));
}
int fdatasync(int file) {
    REAL(fdatasync);
    ON_FILE(K_fdatasync, file, int, (void)0, real(file));
}
int sync_file_range(int file, off64_t start, off64_t size, unsigned flags) {
    REAL(sync_file_range);
    ON_FILE(K_sync_range, file, int, (op.offset = start, op.length = size), real(file, start, size, flags));
}

/* Names ------------------------------------------------------------------------------------------------------------ */

int rename(const char *from, const char *to) {
    REAL(rename);
    ON_PAIR(K_rename, AT_FDCWD, from, AT_FDCWD, to, 0, real(from, to));
}
int renameat(int at, const char *from, int at2, const char *to) {
    REAL(renameat);
    ON_PAIR(K_rename, at, from, at2, to, 0, real(at, from, at2, to));
}
int renameat2(int at, const char *from, int at2, const char *to, unsigned flags) {
    REAL(renameat2);
    ON_PAIR(K_rename, at, from, at2, to, flags & 2 ? EXCHANGED : 0, real(at, from, at2, to, flags));
}
int link(const char *from, const char *to) {
    REAL(link);
    ON_PAIR(K_link, AT_FDCWD, from, AT_FDCWD, to, 0, real(from, to));
}
int linkat(int at, const char *from, int at2, const char *to, int flags) {
    REAL(linkat);
    ON_PAIR(K_link, at, from, at2, to, 0, real(at, from, at2, to, flags));
}
int symlink(const char *text, const char *path) {
    REAL(symlink);
    ON_NAME(K_symlink, AT_FDCWD, path, int, -1, real(text, path));
}
int symlinkat(const char *text, int at, const char *path) {
    REAL(symlinkat);
    ON_NAME(K_symlink, at, path, int, -1, real(text, at, path));
}
int unlink(const char *path) {
    REAL(unlink);
    ON_NAME(K_unlink, AT_FDCWD, path, int, -1, real(path));
}
int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat);
    ON_NAME(flags & AT_REMOVEDIR ? K_rmdir : K_unlink, at, path, int, -1, real(at, path, flags));
}
int rmdir(const char *path) {
    REAL(rmdir);
    ON_NAME(K_rmdir, AT_FDCWD, path, int, -1, real(path));
}
int remove(const char *path) {
    struct stat64 found;
    return !lstat64(path, &found) && S_ISDIR(found.st_mode) ? rmdir(path) : unlink(path);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    ON_NAME(K_mkdir, AT_FDCWD, path, int, -1, real(path, mode));
}
int mkdirat(int at, const char *path, mode_t mode) {
    REAL(mkdirat);
    ON_NAME(K_mkdir, at, path, int, -1, real(at, path, mode));
}

/* Modes and times -------------------------------------------------------------------------------------------------- */

int chmod(const char *path, mode_t mode) {
    REAL(chmod);
    ON_NAME(K_chmod, AT_FDCWD, path, int, -1, real(path, mode));
}
int fchmodat(int at, const char *path, mode_t mode, int flags) {
    REAL(fchmodat);
    ON_NAME(K_chmod, at, path, int, -1, real(at, path, mode, flags));
}
int fchmod(int file, mode_t mode) {
    REAL(fchmod);
    ON_FILE(K_chmod, file, int, (void)0, real(file, mode));
}
int utimensat(int at, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat);
    ON_NAME(K_utime, at, path, int, -1, real(at, path, times, flags));
}
int futimens(int file, const struct timespec times[2]) {
    REAL(futimens);
    ON_FILE(K_utime, file, int, (void)0, real(file, times));
}

/* Reading, which is refused and cut short but has no number -------------------------------------------------------- */

static ssize_t reads(int file, const struct iovec *pieces, int count, off64_t where) {
    static ssize_t (*real)(int, const struct iovec *, int, off64_t);
    static ssize_t (*plain)(int, const struct iovec *, int);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "preadv64");
    if (!plain) plain = (__typeof__(plain))dlsym(RTLD_NEXT, "readv");
#define READ(PIECES, COUNT) (where < 0 ? plain(file, PIECES, COUNT) : real(file, PIECES, COUNT, where))
    if (!watched() || !(control->rule_count || control->short_read || control->delay_us)) return READ(pieces, count);
    struct op op = {.kind = K_read, .most = SIZE_MAX, .length = total(pieces, count)};
    int was = errno;
    int here = path_of(file, op.path);
    errno = was;
    if (!here) return READ(pieces, count);
    struct iovec cut[IOV_MAX];
    ssize_t made = -1;
    if (enter(&op)) made = READ(cut, at_most(pieces, count, op.most, cut));
    leave(&op, made);
    return made;
}

ssize_t read(int file, void *data, size_t size) {
    REAL(read);
    if (!watched()) return real(file, data, size);
    return reads(file, ONE(data, size), -1);
}
ssize_t pread64(int file, void *data, size_t size, off64_t where) {
    REAL(pread64);
    if (!watched()) return real(file, data, size, where);
    return reads(file, ONE(data, size), where);
}
ssize_t pread(int file, void *data, size_t size, off_t where) { return pread64(file, data, size, where); }
ssize_t readv(int file, const struct iovec *pieces, int count) { return reads(file, pieces, count, -1); }
ssize_t preadv(int file, const struct iovec *pieces, int count, off_t where) {
    return reads(file, pieces, count, where);
}
ssize_t preadv64(int file, const struct iovec *pieces, int count, off64_t where) {
    return reads(file, pieces, count, where);
}
ssize_t preadv2(int file, const struct iovec *pieces, int count, off_t where, int flags) {
    REAL(preadv2);
    if (flags || !watched()) return real(file, pieces, count, where, flags);
    return reads(file, pieces, count, where);
}
ssize_t preadv64v2(int file, const struct iovec *pieces, int count, off64_t where, int flags) {
    return preadv2(file, pieces, count, where, flags);
}

int flock(int file, int operation) {
    REAL(flock);
    if (!watched() || !control->rule_count) return real(file, operation);
    ON_FILE(K_lock, file, int, (void)0, real(file, operation));
}

DIR *opendir(const char *path) {
    REAL(opendir);
    if (!watched() || !control->rule_count) return real(path);
    struct op op = {.kind = K_list, .most = SIZE_MAX};
    int was = errno, here = place_of(AT_FDCWD, path, op.path);
    errno = was;
    if (!here) return real(path);
    DIR *made = enter(&op) ? real(path) : NULL;
    leave(&op, made ? 0 : -1);
    return made;
}
DIR *fdopendir(int file) {
    REAL(fdopendir);
    if (!watched() || !control->rule_count) return real(file);
    struct op op = {.kind = K_list, .most = SIZE_MAX};
    int was = errno, here = path_of(file, op.path);
    errno = was;
    if (!here) return real(file);
    DIR *made = enter(&op) ? real(file) : NULL;
    leave(&op, made ? 0 : -1);
    return made;
}

#define STAT(AT, NAME, CALL)                                                                                           \
    if (!watched() || !control->rule_count) return CALL;                                                               \
    ON_NAME(K_stat, AT, NAME, int, -1, CALL)
int stat64(const char *path, struct stat64 *out) {
    REAL(stat64);
    STAT(AT_FDCWD, path, real(path, out));
}
int stat(const char *path, struct stat *out) {
    REAL(stat);
    STAT(AT_FDCWD, path, real(path, out));
}
int fstatat64(int at, const char *path, struct stat64 *out, int flags) {
    REAL(fstatat64);
    STAT(at, path, real(at, path, out, flags));
}
int fstatat(int at, const char *path, struct stat *out, int flags) {
    REAL(fstatat);
    STAT(at, path, real(at, path, out, flags));
}
int statvfs64(const char *path, struct statvfs64 *out) {
    REAL(statvfs64);
    if (!watched() || !control->rule_count) return real(path, out);
    ON_NAME(K_statvfs, AT_FDCWD, path, int, -1, real(path, out));
}
int statvfs(const char *path, struct statvfs *out) {
    REAL(statvfs);
    if (!watched() || !control->rule_count) return real(path, out);
    ON_NAME(K_statvfs, AT_FDCWD, path, int, -1, real(path, out));
}

/* For scripts: a line in the log between operations, which has a number as they have. ------------------------------ */
void unmoor_mark(const char *text) {
    if (!watched()) return;
    struct op op = {.kind = K_mark, .most = SIZE_MAX, .length = (int64_t)strlen(text)};
    struct iovec piece = {(void *)text, strlen(text)};
    op.data = &piece;
    op.pieces = 1;
    snprintf(op.path, sizeof op.path, "%s", control->folder);
    enter(&op);
    leave(&op, op.length);
}
