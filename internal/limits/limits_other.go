// SPDX-License-Identifier: Apache-2.0

//go:build !linux

// Package limits has nothing to do where nothing is traced by the kernel.
package limits

// Raise does nothing.
func Raise() {}

// Original returns nothing.
func Original() string { return "" }

// Restore does nothing.
func Restore(string) error { return nil }
