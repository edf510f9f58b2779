/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Integer types, and the few kernel structures that the programs touch. Their offsets are relocated
 * against the running kernel's BTF when the object is loaded (CO-RE), so only names and types must
 * be right here, not layouts.
 */
#pragma once

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

#ifdef __bpf__
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef s32 __s32;
typedef u64 __u64;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
typedef _Bool bool;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2
};
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_RING_SIZE = 1 };

/* uapi/asm-generic/errno-base.h */
#define ENOENT 2
#define E2BIG  7
#define EAGAIN 11
#define EFAULT 14
#define EINVAL 22
#define ENOSPC 28

#define RELOCATED __attribute__((preserve_access_index))

struct mm_struct {
	unsigned long start_stack;
	unsigned long exec_vm; /* pages */
	void *pgd;
} RELOCATED;

struct inode {
	unsigned long i_ino;
} RELOCATED;

struct file {
	struct inode *f_inode;
} RELOCATED;

struct vm_area_struct {
	unsigned long vm_start;
	struct file *vm_file;
} RELOCATED;

struct return_instance {
	unsigned long stack;	      /* address of the return slot, or CFA, of what was replaced */
	unsigned long orig_ret_vaddr; /* what the slot held */
	struct return_instance *next;
} RELOCATED;

struct uprobe_task {
	struct return_instance *return_instances;
} RELOCATED;

struct ns_common {
	unsigned int inum;
} RELOCATED;

struct pid_namespace {
	struct ns_common ns;
} RELOCATED;

struct upid {
	int nr;
	struct pid_namespace *ns;
} RELOCATED;

struct pid {
	unsigned int level;
	struct upid numbers[1];
} RELOCATED;

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live; /* threads */
} RELOCATED;

struct task_struct {
	int pid; /* of the thread, in the initial PID namespace */
	int tgid;
	u64 start_time;		     /* monotonic, ns */
	unsigned long nvcsw, nivcsw; /* how often it left its CPU: by itself, and not */
	struct mm_struct *mm;
	struct uprobe_task *utask;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
} RELOCATED;
#else
#include <errno.h>
#include <stdbool.h>
#endif

/* A function that the verifier checks once, by itself: target.h. */
#define BPF_GLOBAL __attribute__((noinline))

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef barrier
/* Makes the compiler, and with it the verifier, forget what it knows of memory. */
#define barrier() asm volatile("" ::: "memory")
#endif
#ifndef barrier_var
/* Hides a value's history from the compiler, so that it emits the check that the verifier needs. */
#define barrier_var(v) asm volatile("" : "+r"(v))
#endif
