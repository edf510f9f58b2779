/* A loader of Mach-O libraries for Linux, for tests: what dyld does with a library that it inserts, as far as ours needs it. */
#pragma once

/* resolve gives the address of a name as the library has it, such as "_open"; NULL: it has none. */
typedef void *(*macho_resolver)(const char *name);

/* replaced is called for each pair of the section __interpose. */
typedef void (*macho_replaced)(void *replacement, void *original);

/* macho_load maps the part for this processor of a Mach-O file, binds it, has its replacements taken, and runs its initialisers. It ends
 * the process when the file has something that it does not know. symbol finds what the library exports. */
struct macho;
struct macho *macho_load(const char *path, macho_resolver resolve, macho_replaced replaced);
void *macho_symbol(const struct macho *m, const char *name);

/* macho_contains says whether an address is in the library. */
int macho_contains(const struct macho *m, const void *address);
