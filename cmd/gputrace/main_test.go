package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A process can give itself and its files names that are terminal commands.
func TestPrintable(t *testing.T) {
	require.Equal(t, "no process \ufffd[2Jx\n  try\tthis größe", printable("no process \x1b[2Jx\n  try\tthis größe"))
	require.Equal(t, "\ufffd\ufffd", printable("\x7f\u009b"))
}
