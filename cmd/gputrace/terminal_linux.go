package main

import "golang.org/x/sys/unix"

// getTermios asks for a terminal's settings (ioctl_tty(2)).
const getTermios = unix.TCGETS
