/* SPDX-License-Identifier: Apache-2.0 */
// open_library loads the library, path as for dlopen, and looks its functions up. NULL: it cannot be loaded. Not for
// several threads at the same time, as close_library.
void *open_library(const char *path);

// close_library closes a library. With the last one the functions find nothing any more.
void close_library(void *library);
