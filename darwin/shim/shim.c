//go:build ignore

/* SPDX-License-Identifier: Apache-2.0 */
/* libgputrace.dylib: what gputrace run has dyld insert into a program on macOS. It needs no rights and changes no file; the events go to
 * a file in the folder that GPUTRACE_DIR names, and without one nothing is replaced.
 *
 *   system.h   what it takes from macOS     ring.h    what crosses to gputrace
 *   thread.h   one place a thread           emit.h    the ring
 *   python.h, stack.h   stacks              event.h   events and their counters
 *   metal.h    heaps, buffers, textures     torch.h   tensors
 */
#include "torch.h"

/* gputrace_install_late begins in a process that runs already: what it has allocated before is not known. It returns 1 when there is a
 * device. */
__attribute__((visibility("default"))) int gputrace_install_late(void)
{
	if (!thread_ready)
		thread_start();
	if (!MTLCopyAllDevices)
		return 0;
	use_devices(MTLCopyAllDevices());
	words("late", "yes");
	torch_find();
	return active();
}

__attribute__((constructor)) static void start(void)
{
	thread_start();
	ring_touch(".loaded");
}
