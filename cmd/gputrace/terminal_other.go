//go:build !linux

package main

import "golang.org/x/sys/unix"

// getTermios asks for a terminal's settings (tty(4) of macOS and the BSDs).
const getTermios = unix.TIOCGETA
