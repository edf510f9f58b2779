// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

// KernelRelease is the running kernel's; it is asked for only where something is traced.
func KernelRelease() string { return "unknown" }
