// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

// Package secure lets Go's runtime start in secure execution (a program with file capabilities) as it does otherwise: with the
// auxiliary vector, and with the environment that the user set, to be passed on to a program that is run. It is enough to import it.
// A program without cgo needs nothing of this: no dynamic linker changes its environment.
package secure

import "C" // the constructor in environment.c runs before main
