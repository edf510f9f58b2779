// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

// KernelRelease returns "unknown"; the release matters only where gputrace can trace.
func KernelRelease() string { return "unknown" }
