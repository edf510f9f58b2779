// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package inspect

import "github.com/gputrace/gputrace/process"

// On other systems there is no process whose allocator is read: what is here is the form of what was read.

func copyLimit() int { return minPages }

func vectorBatch(int) batch { return plainBatch(process.Memory(nil)) }

func bootTime() uint64 { return 0 }
