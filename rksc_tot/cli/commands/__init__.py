"""The commands of rksc-tot, one file each."""
