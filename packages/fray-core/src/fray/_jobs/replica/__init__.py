"""What a program calls in the process of a replica: names of `fray.job`. `fray._jobs.runner` starts it."""
