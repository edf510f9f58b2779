// SPDX-License-Identifier: Apache-2.0

//go:build !linux

// Package footprint has nothing to do where nothing is traced by the kernel.
package footprint

import "context"

// Keep waits until ctx is done.
func Keep(ctx context.Context) { <-ctx.Done() }
