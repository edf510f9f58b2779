// PyTorch 1.13 has NVIDIA's runtime inside its own libraries, linked statically, beside the one that it bundles. It
// only runs on NVIDIA's driver. When the libraries are loaded, each of its entry points is made to jump to ours.
// Compiled for a bundled runtime only.
#define _GNU_SOURCE
#include "runtime.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef REDIRECT_STATIC

// jmp *0(%rip), and the address behind it
struct __attribute__((packed)) jump {
    unsigned char opcode[6];
    void *target;
};

static void put(void *at, void *target) {
    struct jump j = {{0xff, 0x25, 0, 0, 0, 0}, target};
    uintptr_t first = (uintptr_t)at & ~4095ul, end = ((uintptr_t)at + sizeof j + 4095) & ~4095ul;
    if (mprotect((void *)first, end - first, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
    memcpy(at, &j, sizeof j);
    mprotect((void *)first, end - first, PROT_READ | PROT_EXEC);
}

// entry says whether a symbol is an entry point of a runtime that was linked statically: those are not exported.
static int entry(const Elf64_Sym *s, const char *name) {
    return ELF64_ST_TYPE(s->st_info) == STT_FUNC && ELF64_ST_BIND(s->st_info) == STB_LOCAL &&
           s->st_size >= sizeof(struct jump) && (!strncmp(name, "cuda", 4) || !strncmp(name, "__cuda", 6));
}

static void redirect_symbols(const char *file, const Elf64_Shdr *table, const Elf64_Shdr *names, uintptr_t base) {
    const Elf64_Sym *s = (const Elf64_Sym *)(file + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof *s; i++) {
        const char *name = file + names->sh_offset + s[i].st_name;
        void *ours = entry(&s[i], name) ? dlsym(RTLD_DEFAULT, name) : NULL;
        if (ours) put((void *)(base + s[i].st_value), ours);
    }
}

static void redirect_file(const char *file, uintptr_t base) {
    const Elf64_Ehdr *h = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + h->e_shoff);
    for (int i = 0; i < h->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB)
            redirect_symbols(file, &sections[i], &sections[sections[i].sh_link], base);
}

static int redirect_library(struct dl_phdr_info *info, size_t size, void *data) {
    struct stat st;
    const char *name = strrchr(info->dlpi_name, '/');
    int fd = name && (strstr(name, "/libc10_cuda") || strstr(name, "/libtorch_python"))
                 ? open(info->dlpi_name, O_RDONLY)
                 : -1;
    if (fd < 0) return 0;
    void *file = fstat(fd, &st) ? MAP_FAILED : mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED) return 0;
    redirect_file(file, info->dlpi_addr);
    munmap(file, st.st_size);
    return 0;
}

void redirect(void) {
    static int done;
    if (!done++) dl_iterate_phdr(redirect_library, NULL);
}

#else
void redirect(void) {}
#endif
