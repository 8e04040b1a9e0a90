"""Stand-ins: services whose planner or drafter is exchanged for a measurement; everything else is the real one."""
