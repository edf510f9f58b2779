/* Structures and opcodes: mach-o/loader.h, mach-o/fat.h and mach-o/nlist.h of macOS. */
#define _GNU_SOURCE
#include "macho.h"
#include "unwind.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAT_MAGIC	   0xbebafeca /* big endian in the file */
#define MH_MAGIC_64	   0xfeedfacf
#define CPU_X86_64	   0x01000007
#define CPU_ARM64	   0x0100000c
#define LC_SYMTAB	   0x2
#define LC_SEGMENT_64	   0x19
#define LC_DYLD_INFO_ONLY  0x80000022
#define LC_CHAINED_FIXUPS  0x80000034
#define S_INIT_POINTERS	   0x9
#define S_THREAD_VARIABLES 0x13
#define S_INIT_OFFSETS	   0x16
#define MAX_SEGMENTS	   16
#define N_STAB		   0xe0
#define N_SECT		   0xe

#ifdef __aarch64__
#define CPU_HERE CPU_ARM64
#else
#define CPU_HERE CPU_X86_64
#endif

struct fat_arch {
	uint32_t cpu, subtype, offset, size, align; /* big endian */
};

struct header {
	uint32_t magic, cpu, subtype, type, commands, command_bytes, flags, reserved;
};

struct command {
	uint32_t cmd, size;
};

struct segment {
	uint32_t cmd, size;
	char name[16];
	uint64_t address, bytes, offset, file_bytes;
	uint32_t max_protection, protection, sections, flags;
};

struct section {
	char name[16], segment[16];
	uint64_t address, bytes;
	uint32_t offset, align, relocations, relocation_count, flags, reserved[3];
};

struct dyld_info {
	uint32_t cmd, size;
	uint32_t rebase, rebase_bytes, bind, bind_bytes, weak, weak_bytes, lazy, lazy_bytes,
		exports, export_bytes;
};

struct symtab {
	uint32_t cmd, size, symbols, count, strings, string_bytes;
};

struct symbol {
	uint32_t name;
	uint8_t type, section;
	uint16_t description;
	uint64_t value;
};

struct macho {
	const uint8_t *file;
	uint8_t *base;
	uint64_t bytes;
	const struct segment *segments[MAX_SEGMENTS];
	unsigned segment_count;
	const struct dyld_info *info;
	const struct symtab *symtab;
	macho_resolver resolve;
	macho_replaced replaced;
};

static void die(const char *what, const char *which)
{
	fprintf(stderr, "macho: %s %s\n", what, which);
	abort();
}

static const uint8_t *read_file(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const uint8_t *at;
	if (fd < 0 || fstat(fd, &st))
		die("cannot open", path);
	at = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		die("cannot map", path);
	return at;
}

/* part finds the Mach-O file for this processor in a fat file. */
static const uint8_t *part(const uint8_t *file, const char *path)
{
	const uint32_t *words = (const uint32_t *)file;
	const struct fat_arch *arch = (const struct fat_arch *)(words + 2);
	if (words[0] != FAT_MAGIC)
		return file;
	for (uint32_t i = 0; i < __builtin_bswap32(words[1]); i++)
		if (__builtin_bswap32(arch[i].cpu) == CPU_HERE)
			return file + __builtin_bswap32(arch[i].offset);
	die("no part for this processor in", path);
	return NULL;
}

static uint64_t uleb(const uint8_t **p)
{
	uint64_t v = 0;
	unsigned shift = 0;
	uint8_t byte;
	do {
		byte = *(*p)++;
		v |= (uint64_t)(byte & 0x7f) << shift;
		shift += 7;
	} while (byte & 0x80);
	return v;
}

static uint64_t *slot(struct macho *m, unsigned segment, uint64_t offset)
{
	if (segment >= m->segment_count || offset + 8 > m->segments[segment]->bytes)
		die("a fixup is", "outside of its segment");
	return (uint64_t *)(m->base + m->segments[segment]->address + offset);
}

/* rebase adds the address of the library to the pointers into itself. */
static void rebase(struct macho *m)
{
	const uint8_t *p = m->file + m->info->rebase, *end = p + m->info->rebase_bytes;
	unsigned segment = 0;
	uint64_t offset = 0;
	while (p < end) {
		uint8_t op = *p & 0xf0, imm = *p & 0xf;
		uint64_t n = 0, skip = 0;
		p++;
		switch (op) {
		case 0x00: /* DONE */
			return;
		case 0x10: /* SET_TYPE_IMM */
			break;
		case 0x20: /* SET_SEGMENT_AND_OFFSET_ULEB */
			segment = imm;
			offset = uleb(&p);
			break;
		case 0x30: /* ADD_ADDR_ULEB */
			offset += uleb(&p);
			break;
		case 0x40: /* ADD_ADDR_IMM_SCALED */
			offset += imm * 8;
			break;
		case 0x50: /* DO_REBASE_IMM_TIMES */
			n = imm;
			break;
		case 0x60: /* DO_REBASE_ULEB_TIMES */
			n = uleb(&p);
			break;
		case 0x70: /* DO_REBASE_ADD_ADDR_ULEB */
			n = 1;
			skip = uleb(&p);
			break;
		case 0x80: /* DO_REBASE_ULEB_TIMES_SKIPPING_ULEB */
			n = uleb(&p);
			skip = uleb(&p);
			break;
		default:
			die("unknown rebase", "opcode");
		}
		for (; n; n--, offset += 8 + skip)
			*slot(m, segment, offset) += (uint64_t)m->base;
	}
}

/* bind stores the addresses of what the library imports. */
static void bind(struct macho *m, uint32_t at, uint32_t bytes, int lazy)
{
	const uint8_t *p = m->file + at, *end = p + bytes;
	const char *name = "";
	unsigned segment = 0;
	uint64_t offset = 0;
	int weak = 0;
	while (p < end) {
		uint8_t op = *p & 0xf0, imm = *p & 0xf;
		uint64_t n = 0, skip = 0;
		p++;
		switch (op) {
		case 0x00: /* DONE: of one entry, where they are lazy */
			if (!lazy)
				return;
			break;
		case 0x10: /* SET_DYLIB_ORDINAL_IMM */
		case 0x30: /* SET_DYLIB_SPECIAL_IMM */
		case 0x50: /* SET_TYPE_IMM */
			break;
		case 0x20: /* SET_DYLIB_ORDINAL_ULEB */
			uleb(&p);
			break;
		case 0x40: /* SET_SYMBOL_TRAILING_FLAGS_IMM */
			name = (const char *)p;
			weak = imm & 1;
			p += strlen(name) + 1;
			break;
		case 0x70: /* SET_SEGMENT_AND_OFFSET_ULEB */
			segment = imm;
			offset = uleb(&p);
			break;
		case 0x80: /* ADD_ADDR_ULEB */
			offset += uleb(&p);
			break;
		case 0x90: /* DO_BIND */
			n = 1;
			break;
		case 0xa0: /* DO_BIND_ADD_ADDR_ULEB */
			n = 1;
			skip = uleb(&p);
			break;
		case 0xb0: /* DO_BIND_ADD_ADDR_IMM_SCALED */
			n = 1;
			skip = imm * 8;
			break;
		case 0xc0: /* DO_BIND_ULEB_TIMES_SKIPPING_ULEB */
			n = uleb(&p);
			skip = uleb(&p);
			break;
		default:
			die("unknown bind opcode at", name);
		}
		for (; n; n--, offset += 8 + skip) {
			void *value = m->resolve(name);
			if (!value && !weak)
				die("nothing has", name);
			*slot(m, segment, offset) = (uint64_t)value;
		}
	}
}

static void map_segment(struct macho *m, const struct segment *s)
{
	if (m->segment_count == MAX_SEGMENTS)
		die("too many segments:", s->name);
	m->segments[m->segment_count++] = s;
	memcpy(m->base + s->address, m->file + s->offset, s->file_bytes);
}

/* each calls a function for every load command. */
static void each(struct macho *m, void (*take)(struct macho *, const struct command *))
{
	const struct header *h = (const struct header *)m->file;
	const uint8_t *p = (const uint8_t *)(h + 1);
	for (uint32_t i = 0; i < h->commands; i++) {
		const struct command *c = (const struct command *)p;
		take(m, c);
		p += c->size;
	}
}

static void take_size(struct macho *m, const struct command *c)
{
	const struct segment *s = (const struct segment *)c;
	if (c->cmd == LC_SEGMENT_64 && s->address + s->bytes > m->bytes)
		m->bytes = s->address + s->bytes;
}

static void take_command(struct macho *m, const struct command *c)
{
	switch (c->cmd) {
	case LC_SEGMENT_64:
		map_segment(m, (const struct segment *)c);
		break;
	case LC_DYLD_INFO_ONLY:
		m->info = (const struct dyld_info *)c;
		break;
	case LC_SYMTAB:
		m->symtab = (const struct symtab *)c;
		break;
	case LC_CHAINED_FIXUPS:
		die("chained fixups are", "not known");
	}
}

/* protect_code makes what is code what dyld would: it cannot be written to. */
static void protect_code(struct macho *m)
{
	for (unsigned i = 0; i < m->segment_count; i++) {
		const struct segment *s = m->segments[i];
		if (!strcmp(s->name, "__TEXT") &&
		    mprotect(m->base + s->address, s->bytes, PROT_READ | PROT_EXEC))
			die("cannot protect", s->name);
	}
	__builtin___clear_cache((char *)m->base, (char *)m->base + m->bytes);
}

typedef void (*initialiser)(int, char **, char **, char **, void *);

static void run_section(struct macho *m, const struct section *s)
{
	uint8_t *at = m->base + s->address;
	if ((s->flags & 0xff) == S_THREAD_VARIABLES)
		die("thread variables are", "not known");
#ifdef __x86_64__
	if (!strncmp(s->name, "__unwind_info", sizeof s->name))
		unwind_register(m->base, at, s->bytes);
#endif
	if (!strncmp(s->name, "__interpose", sizeof s->name))
		for (void **p = (void **)at; (uint8_t *)p < at + s->bytes; p += 2)
			m->replaced(p[0], p[1]);
	if ((s->flags & 0xff) == S_INIT_POINTERS)
		for (uint64_t i = 0; i < s->bytes / 8; i++)
			((initialiser *)at)[i](0, NULL, NULL, NULL, NULL);
	if ((s->flags & 0xff) == S_INIT_OFFSETS)
		for (uint64_t i = 0; i < s->bytes / 4; i++)
			((initialiser)(m->base + ((uint32_t *)at)[i]))(0, NULL, NULL, NULL, NULL);
}

/* run_sections: replacements are taken before anything of the library runs. */
static void run_sections(struct macho *m, int initialisers)
{
	for (unsigned i = 0; i < m->segment_count; i++) {
		const struct section *s = (const struct section *)(m->segments[i] + 1);
		for (uint32_t k = 0; k < m->segments[i]->sections; k++)
			if ((strncmp(s[k].name, "__interpose", sizeof s->name) != 0) ==
			    initialisers)
				run_section(m, &s[k]);
	}
}

struct macho *macho_load(const char *path, macho_resolver resolve, macho_replaced replaced)
{
	struct macho *m = calloc(1, sizeof *m);
	m->file = part(read_file(path), path);
	m->resolve = resolve;
	m->replaced = replaced;
	if (((const struct header *)m->file)->magic != MH_MAGIC_64)
		die("no Mach-O file:", path);
	each(m, take_size);
	m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->base == MAP_FAILED)
		die("no memory for", path);
	each(m, take_command);
	if (!m->info)
		die("no LC_DYLD_INFO_ONLY in", path);
	rebase(m);
	bind(m, m->info->bind, m->info->bind_bytes, 0);
	bind(m, m->info->lazy, m->info->lazy_bytes, 1);
	protect_code(m);
	run_sections(m, 0);
	run_sections(m, 1);
	return m;
}

void *macho_symbol(const struct macho *m, const char *name)
{
	const struct symbol *symbols = (const struct symbol *)(m->file + m->symtab->symbols);
	const char *strings = (const char *)(m->file + m->symtab->strings);
	for (uint32_t i = 0; i < m->symtab->count; i++)
		if (!(symbols[i].type & N_STAB) && (symbols[i].type & N_SECT) == N_SECT &&
		    !strcmp(strings + symbols[i].name, name))
			return m->base + symbols[i].value;
	return NULL;
}

int macho_contains(const struct macho *m, const void *address)
{
	return (const uint8_t *)address >= m->base && (const uint8_t *)address < m->base + m->bytes;
}
