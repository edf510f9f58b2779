package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// isTerminal says whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}
