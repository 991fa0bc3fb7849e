"""Where a job is launched and looked at: any machine that reaches the dashboard."""
