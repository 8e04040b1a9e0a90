"""Code shared by the programs of this distribution: the services, the gateway and the commands."""
