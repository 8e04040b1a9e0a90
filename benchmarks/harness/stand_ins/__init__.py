"""Stand-ins: services whose planner or drafter is replaced for a measurement; everything else is the real one."""
