"""What needs a Ray of one node; the folder is a package so that its tests share one."""
