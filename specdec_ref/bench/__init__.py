"""The benchmark: ways of generating (arms) take turns on the same prompts, and ratios are told with intervals."""
