// A library that is loaded, called and unloaded: FRAME bytes of stack between library_call and the function that it
// calls. Builds with another FRAME differ in nothing else but names.
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

#ifdef __aarch64__
#define ENTER "str x30, [sp, #-16]!\n.cfi_adjust_cfa_offset 16\n.cfi_rel_offset x30, 0\n"
#define SUB(n) "sub sp, sp, #0x" TEXT(n) "\n"
#define CALL "blr x0\n"
#define ADD(n) "add sp, sp, #0x" TEXT(n) "\n"
#define LEAVE "ldr x30, [sp], #16\n.cfi_adjust_cfa_offset -16\n.cfi_restore x30\n"
#else
#define ENTER ""
#define SUB(n) "sub $0x" TEXT(n) ", %rsp\n"
#define CALL "call *%rdi\n"
#define ADD(n) "add $0x" TEXT(n) ", %rsp\n"
#define LEAVE ""
#endif

__asm__(".globl library_call\n.type library_call,@function\n.balign 4096\nlibrary_call:\nlibrary_call_" TEXT(
    FRAME) ":\n.cfi_startproc\n" ENTER SUB(FRAME) ".cfi_adjust_cfa_offset 0x" TEXT(FRAME) "\n" CALL
            ADD(FRAME) ".cfi_adjust_cfa_offset -0x" TEXT(
                FRAME) "\n" LEAVE "ret\n.cfi_endproc\n.size library_call, .-library_call\n");
