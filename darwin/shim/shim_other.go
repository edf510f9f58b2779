// SPDX-License-Identifier: Apache-2.0

//go:build !darwin

// Package shim has the library that gputrace run inserts into a program on macOS. It is made of the C sources here by the script build;
// make generate does so, and CI compares. Only gputrace for macOS contains it.
package shim

// Library is the Mach-O file, for arm64 and x86_64: none elsewhere than on macOS.
var Library []byte
