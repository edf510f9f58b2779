// What the programs that call a GPU's memory functions have in common: cudacalls, hipcalls, zecalls.
//
// Such a program has a table of the functions that it calls, and a table of families: ways to get memory. It keeps an
// account of its own, by function and by what is live. How it is driven is the same for all (calls.c).
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t ptr; // an address or a handle

// ---- functions

struct call {
    const char *name;
    int library;    // index in libraries
    void **pointer; // where the function's address goes when its library is loaded
};
extern const struct call calls[];        // a row without a name ends it
extern const char *const libraries[][4]; // for each the names to try, ended by NULL

// A program lists its functions as CALLS(X) with rows X(library, name, argument types...), and applies these to it.
#define DEFINE(library, f, ...) int (*f)(__VA_ARGS__);
#define NUMBER(library, f, ...) N_##f,
#define ROW(library, f, ...) {#f, library, (void **)&f},

// DO calls a function of the list and counts how it went. It gives the function's result.
#define DO(f, ...) (call_begins(N_##f), call_ended(f(__VA_ARGS__)))
void call_begins(int call);
int call_ended(int rc);

// ---- memory

// One thing that a call handed out and that one call gives back. The first words are laid out as cudaPitchedPtr.
struct part {
    ptr p;
    size_t pitch, xsize, ysize;
    size_t n, rows;                // n: bytes; with rows they are pitch times rows
    const ptr *from;               // where the call puts p, if not there
    ptr other;                     // what release needs beside p
    int call;                      // that handed it out
    int silent;                    // it is no memory
    int (*release)(struct part *); // makes one call by DO
};
enum { PARTS = 8 };
struct block { // parts are given back in the opposite order
    int parts;
    struct part part[PARTS];
    uint64_t scratch[32]; // for arguments that must outlive the function that makes the call
};
// fresh is the next part of a block, empty. TAKE makes the call that hands it out; if that fails there is no such part.
struct part *fresh(struct block *b, size_t n, int (*release)(struct part *));
#define TAKE(b, f, ...) (part_begins(b, N_##f), part_ended(b, DO(f, __VA_ARGS__)))
void part_begins(struct block *b, int call);
int part_ended(struct block *b, int rc);

struct family {
    const char *name;
    int (*take)(struct block *b, size_t n); // n is a wish; gives 0, or the result of the call that failed
    int apart;                              // only when it is asked for, by name or as one of all
};
extern const struct family families[]; // a row without a name ends it

int take(struct block *b, const struct family *f, size_t n); // what could be had only in part is given back
int give(struct block *b);                                   // all parts; tries again when a call fails
int give_last(struct block *b);                              // one part, once
enum { RETRIES = 1000 };

// ---- what a program has beside the tables

void start(void);                   // after loading: makes the first device ready
void start_thread(void);            // in every thread: makes its calls go to the first device
void settle_device(void);           // at the end, when all is given back: lets the device give back what it kept
void misuse(const struct block *b); // calls that must fail; b may be empty
void misuse_alone(void);            // those that are only safe while no other thread makes calls
void run_reset(int rounds);         // --reset: contexts and devices end with memory in them

// ---- for run_reset

unsigned draw(unsigned below);  // a random number
struct block *own_block(int i); // of the calling thread, i below BLOCKS
enum { BLOCKS = 64 };
