// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

// Package secure has nothing to do without cgo: no dynamic linker changes the environment.
package secure
