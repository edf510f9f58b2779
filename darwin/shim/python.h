/* SPDX-License-Identifier: Apache-2.0 */
/* Python's frames, read by the thread that runs them, without the GIL: it is in our code, so its own chain of frames does not change,
 * and frames hold their code objects. Taking the GIL here would wait for a thread that waits for the allocator's lock. */
#pragma once
#include "layouts.h"
#include "thread.h"

#define PYTHON_FRAMES 256

/* Of PyUnicodeObject (Include/cpython/unicodeobject.h): PyObject, length, hash, state. Of PyBytesObject: PyVarObject, hash. */
#define TEXT_LENGTH 0
#define TEXT_STATE  16
#define BYTES_DATA  16

static struct {
	void *(*thread_state)(void); /* NULL: there is no Python yet */
	const char *(*version)(void);
	const struct python_layout *layout;
	uint32_t images; /* that were mapped when it was last looked for */
} python;

#define AT(type, base, offset) (*(type *)((char *)(base) + (offset)))

static const struct python_layout *python_layout(const char *version)
{
	uint64_t major, minor;
	int free_threaded = text_find(version, "free-threading build") != NULL;
	version = text_number(version, &major);
	if (major != 3 || *version != '.')
		return NULL;
	text_number(version + 1, &minor);
	for (unsigned i = 0; i < sizeof python_layouts / sizeof *python_layouts; i++)
		if (python_layouts[i].minor == minor &&
		    python_layouts[i].free_threaded == free_threaded)
			return &python_layouts[i];
	return NULL;
}

/* python_find looks for an interpreter, again when more libraries were mapped. */
static void python_find(void)
{
	const char *(*version)(void);
	void *(*state)(void);
	uint32_t images;
	if (python.thread_state)
		return;
	images = _dyld_image_count();
	if (images == python.images)
		return;
	python.images = images;
	*(void **)&state = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
	*(void **)&version = dlsym(RTLD_DEFAULT, "Py_GetVersion");
	if (!state || !version)
		return;
	words("python", version());
	python.version = version;
	python.layout = python_layout(version());
	python.thread_state = state;
}

static char *python_first(char *state, const struct python_layout *l)
{
	char *cframe;
	if (l->tstate_frame != NO_FIELD)
		return AT(char *, state, l->tstate_frame);
	cframe = AT(char *, state, l->tstate_cframe);
	return cframe ? AT(char *, cframe, l->cframe_frame) : NULL;
}

/* python_text_hash is of the beginning of a text, so that a code object at the address of another is seen to be another. */
static uint64_t python_text_hash(const char *text, const struct python_layout *l, uint64_t h)
{
	uint64_t n = AT(uint64_t, text, l->object + TEXT_LENGTH);
	const char *data = text + l->ascii;
	for (uint64_t i = 0; i < n / 8 && i < 8; i++)
		h = hash_word(h, AT(uint64_t, data, i * 8));
	return hash_word(h, n);
}

static uint64_t python_code_id(char *code, const struct python_layout *l)
{
	uint64_t h = hash_word(HASH_BEGIN, (uintptr_t)code);
	char *name = AT(char *, code, l->qualname);
	h = hash_word(h, (uint64_t)AT(int32_t, code, l->first_line));
	h = hash_word(h, AT(uintptr_t, code, l->line_table));
	h = hash_word(h, AT(uintptr_t, code, l->filename));
	return name ? python_text_hash(name, l, h) : h;
}

struct python_walk {
	struct ring_frame frames[PYTHON_FRAMES];
	char *codes[PYTHON_FRAMES];
	uint32_t count;
	enum ring_python result;
};

/* python_frame takes one frame. Frames that only mark where an activation of the eval loop begins end the run before them. */
static void python_frame(struct python_walk *w, char *frame, const struct python_layout *l)
{
	unsigned char owner = l->owner == NO_FIELD ? 0 : AT(unsigned char, frame, l->owner);
	char *code = (char *)(AT(uintptr_t, frame, l->code) &
			      ~(uintptr_t)3); /* the low bits are the interpreter's, 3.14 */
	struct ring_frame *f = &w->frames[w->count];
	if (l->entry == ENTRY_SHIM && owner >= l->owner_shim) {
		if (w->count)
			w->frames[w->count - 1].entry = 1;
		return;
	}
	f->code = python_code_id(code, l);
	f->instr =
		l->instr_size == 8 ? AT(uint64_t, frame, l->instr) : AT(uint32_t, frame, l->instr);
	f->entry = l->entry == ENTRY_EACH || (l->entry == ENTRY_FLAG && owner == 1);
	w->codes[w->count++] = code;
}

/* python_walk reads the frames of the calling thread. */
static void python_walk(struct python_walk *w)
{
	const struct python_layout *l;
	char *state, *frame;
	w->count = 0;
	w->result = PYTHON_NONE;
	python_find();
	state = python.thread_state ? python.thread_state() : NULL;
	if (!state)
		return;
	l = python.layout;
	w->result = PYTHON_UNKNOWN;
	if (!l)
		return;
	w->result = PYTHON_READ;
	for (frame = python_first(state, l); frame; frame = AT(char *, frame, l->previous)) {
		if (w->count == PYTHON_FRAMES) {
			w->result = PYTHON_CUT;
			return;
		}
		if (AT(uintptr_t, frame, l->code) == 0) {
			w->result = PYTHON_BROKEN;
			return;
		}
		python_frame(w, frame, l);
	}
}
