// SPDX-License-Identifier: Apache-2.0

// Package dtrace writes the script by which dtrace sees the allocations of a process on macOS that runs already, and reads what it
// prints. Such a recording has native stacks only: dtrace cannot read Python's frames.
//
// The common part keeps to what dtrace of macOS and of Linux both know, and all of it to what System Integrity
// Protection leaves to root: the providers pid and objc, no kernel, no destructive action (dtrace(1) of macOS, xnu
// bsd/dev/dtrace). Methods of Metal's drivers are asked for by Apple's provider objc, of classes whose names are in
// their symbol tables (IOGPU...; those of the GPU's family are stripped).
package dtrace

import (
	"fmt"
	"strings"
)

// Script is what is asked of dtrace.
type Script struct {
	// Frames is how many frames a stack has at most. 0: 64.
	Frames int
	// Metal also asks for Metal's objects, by the provider objc, which is macOS's alone.
	Metal bool
}

const defaultFrames = 64

// mark begins each line of ours: a program that is traced may print too.
const mark = "GPT"

// Options are the arguments of dtrace for a script in a file: symbols mangled, so that they can be matched, and libraries that are not
// loaded yet are no error.
func Options(pid int, file string) []string {
	return []string{"-Z", "-x", "mangled", "-p", fmt.Sprint(pid), "-s", file}
}

// Text is the script.
func (s *Script) Text() string {
	frames := s.Frames
	if frames == 0 {
		frames = defaultFrames
	}
	var b strings.Builder
	for _, option := range []string{
		"quiet", "bufsize=16m", "switchrate=10hz", "dynvarsize=32m", fmt.Sprintf("ustackframes=%d", frames),
	} {
		fmt.Fprintf(&b, "#pragma D option %s\n", option)
	}
	b.WriteString("BEGIN { printf(\"" + mark + "|B|%d|%d\\n\", timestamp, pid); }\n")
	b.WriteString(torch)
	if s.Metal {
		b.WriteString(metal)
	}
	return b.String()
}

// torch are PyTorch's functions: MPSHeapAllocatorImpl::malloc(size, usage) and free(pointer). The return of malloc
// has the buffer. A request that is refused does not return: an exception is thrown within it, once; of those that
// the thread throws later none is this one's.
const torch = `pid$target:libtorch_cpu*:*MPSHeapAllocatorImpl6mallocEmj:entry { self->size = arg1; self->in = 1; }
pid$target:libc??abi*:*_cxa_throw:entry /self->in == 1/ {
	printf("` + mark + `|R|%d|%d|%d\n", timestamp, tid, self->size); ustack(); printf("` + mark + `|E\n");
	self->in = 2;
}
pid$target:libtorch_cpu*:*MPSHeapAllocatorImpl6mallocEmj:return /self->in/ {
	printf("` + mark + `|A|%d|%d|%x|%d\n", timestamp, tid, arg1, self->size); ustack(); printf("` + mark + `|E\n");
	self->size = 0; self->in = 0;
}
pid$target:libtorch_cpu*:*MPSHeapAllocatorImpl4freeEPv:entry { printf("` + mark + `|F|%d|%d|%x\n", timestamp, tid, arg1); }
`

// metal are methods of IOGPU's classes. A colon of a selector is a question mark; arguments begin with self and
// _cmd. An initialiser may call another of the same object, which is then printed twice. A buffer that has a
// pointer imports memory.
const metal = `objc$target:IOGPUMetalHeap:-initWithDevice?size?options?args?argsSize*:entry { self->heap = arg3; }
objc$target:IOGPUMetalHeap:-initWithDevice?size?options?args?argsSize*:return /self->heap/ {
	printf("` + mark + `|H|%d|%d|%x|%d\n", timestamp, tid, arg1, self->heap); ustack(); printf("` + mark + `|E\n");
}
objc$target:IOGPUMetalBuffer:-initWithDevice?pointer?length?*:entry { self->buffer = arg3 ? 0 : arg4; }
objc$target:IOGPUMetalBuffer:-initWithDevice?pointer?length?*:return /self->buffer/ {
	printf("` + mark + `|M|%d|%d|%x|%d\n", timestamp, tid, arg1, self->buffer); ustack(); printf("` + mark + `|E\n");
}
objc$target:IOGPUMetalBuffer:-initWithHeap?resource?offset?length*:entry { self->from = arg2; self->offset = arg4; self->length = arg5; }
objc$target:IOGPUMetalBuffer:-initWithHeap?resource?offset?length*:return /self->from/ {
	printf("` + mark + `|U|%d|%d|%x|%d|%x|%d\n", timestamp, tid, arg1, self->length, self->from, self->offset);
}
objc$target:IOGPUMetalHeap:-setPurgeableState?:entry /arg2 == 4/ { printf("` + mark + `|P|%d|%d|%x\n", timestamp, tid, arg0); }
objc$target:IOGPUMetalHeap:-dealloc:entry { printf("` + mark + `|D|%d|%d|%x\n", timestamp, tid, arg0); }
objc$target:IOGPUMetalBuffer:-dealloc:entry { printf("` + mark + `|D|%d|%d|%x\n", timestamp, tid, arg0); }
`
