/* Exceptions that pass through a Mach-O library on Linux, for tests. */
#pragma once
#include <stdint.h>

/* unwind_register gives the unwind information of a library, its section __unwind_info, to Linux's unwinder. */
void unwind_register(const uint8_t *base, const uint8_t *info, uint64_t bytes);
