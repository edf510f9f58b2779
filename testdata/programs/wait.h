// Options and the start signal of the C test programs.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct option { // a row without a name ends the table
    const char *name;
    int *number;
    const char **text;
    int *flag; // takes no value
};

static inline void set_option(const struct option *o, const char *value) {
    if (o->text)
        *o->text = value;
    else
        *o->number = atoi(value);
}

// parse_options takes "--name value" and "--flag"; it ends the program with status 2 at anything else.
static inline void parse_options(int argc, char **argv, const struct option *options) {
    for (int i = 1; i < argc; i++) {
        const struct option *o = options;
        while (o->name && strcmp(o->name, argv[i]))
            o++;
        if (o->name && o->flag) {
            *o->flag = 1;
            continue;
        }
        if (!o->name || i + 1 == argc) {
            fprintf(stderr, "%s: %s: %s\n", argv[0], argv[i], o->name ? "needs a value" : "unknown option");
            exit(2);
        }
        set_option(o, argv[++i]);
    }
}

static inline void wait_for_file(const char *path) {
    while (path && access(path, F_OK))
        usleep(10000);
}

// wait_for_go prints READY <pid> and waits until the file exists; without a file it does neither.
static inline void wait_for_go(const char *path) {
    if (!path) return;
    printf("READY %d\n", getpid());
    fflush(stdout);
    wait_for_file(path);
}
