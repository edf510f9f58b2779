// The interface of libsampled.so.
#pragma once
#include <stddef.h>

struct sampled_counts {         // of its samples, by its own account
    size_t live, bytes, weight; // in use: number, their bytes, and the bytes that they represent
    size_t all;                 // the bytes that all samples represented, since the first one that was fired
};

void sampled_interval(size_t bytes); // mean distance of samples; 0: every allocation is one
void *sampled_take(size_t bytes);
void *sampled_take_page(void); // 4096 bytes, always a sample of itself
void sampled_give(void *memory);
struct sampled_counts sampled_count(void);
int sampled_tracers(void); // of both probes
