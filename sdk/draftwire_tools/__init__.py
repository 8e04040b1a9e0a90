"""Tools of the command line that start services, measure and compare: demo, serve, bench, check, check-drafter, top."""
