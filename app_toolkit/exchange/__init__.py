"""One exchange for everything that is sent to a replica: its target, its replica, its attempts."""
