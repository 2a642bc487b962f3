"""(Catalog, Target) -> Plan, and where a bare load puts things. Pure."""
