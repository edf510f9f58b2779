//go:build ignore

/* SPDX-License-Identifier: Apache-2.0 */
/* libgputrace.dylib: what gputrace run has dyld insert into a program on macOS. It needs no rights and changes no file; the events go to
 * a file in the folder that GPUTRACE_DIR names, and without one nothing is replaced.
 *
 *   system.h   what it takes from macOS     ring.h    what crosses to gputrace
 *   thread.h   one place a thread           emit.h    the ring              answer.h   what gputrace asks of its memory
 *   python.h, stack.h   stacks              event.h   events and their counters
 *   call.h     exceptions that leave a call  metal.h    heaps, buffers, textures     torch.h   tensors
 */
#include "torch.h"

enum late { LATE_NO_DEVICE, LATE_BEGAN, LATE_TRACED, LATE_NO_RING };

/* gputrace_install_late begins in a process that runs already, with a ring in a folder, of so many bytes. What the process has allocated
 * before is known by the sum alone. It can be called again when the gputrace before has ended; LATE_TRACED: it has not. */
__attribute__((visibility("default"))) int gputrace_install_late(const char *folder, uint64_t bytes)
{
	struct text t = { ring_folder, ring_folder + sizeof ring_folder };
	unsigned known = device_count;
	if (active())
		return LATE_TRACED;
	if (!MTLCopyAllDevices)
		return LATE_NO_DEVICE;
	if (!thread_ready)
		thread_start();
	if (!ring ||
	    ring_pid != (uint32_t)getpid()) { /* none, or of the process that this is a fork of */
		ring_pid = 0;
		__atomic_clear(&ring_lock_word, __ATOMIC_RELEASE);
	}
	text_add(&t, folder);
	ring_asked = bytes;
	totals = torch_totals;
	seen_nothing();
	use_devices(MTLCopyAllDevices());
	if (!active())
		return device_count ? LATE_NO_RING : LATE_NO_DEVICE;
	words("late", "yes");
	if (known)
		words("device class", class_getName(object_getClass(devices[0])));
	if (python.version)
		words("python", python.version());
	if (torch.count)
		words("torch", "blocks are traced");
	torch_find();
	return LATE_BEGAN;
}

__attribute__((constructor)) static void start(void)
{
	thread_start();
	ring_touch(".loaded");
}
