"""Reports of fits: early exit and ArborKV."""
