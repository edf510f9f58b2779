// A library that is loaded, called and unloaded: FRAME bytes of stack between library_call and the function that it
// calls. Builds with another FRAME differ in nothing else but names.
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

__asm__(".globl library_call\n.type library_call,@function\n.balign 4096\nlibrary_call:\nlibrary_call_" TEXT(
    FRAME) ":\n"
           ".cfi_startproc\n"
           "sub $0x" TEXT(FRAME) ", %rsp\n.cfi_adjust_cfa_offset 0x" TEXT(
               FRAME) "\n"
                      "call *%rdi\n"
                      "add $0x" TEXT(FRAME) ", %rsp\n.cfi_adjust_cfa_offset -0x" TEXT(
                          FRAME) "\n"
                                 "ret\n"
                                 ".cfi_endproc\n.size library_call, .-library_call\n");
