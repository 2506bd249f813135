/*
 * nvidia-smi: its start. The compiler's own start needs __libc_start_main of glibc 2.34, and images with an
 * older glibc have another version of it. So this start asks for it by name (as library.c does with dlopen).
 */
#if defined(__x86_64__) && !defined(XPU_SIM_COMMON_START)
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.2.5\n"
        /* As in crt1.o: the stack has main's argc and argv, rdx the function to call at exit. There are no
         * constructors of our own, so init and fini are empty. */
        ".globl _start\n"
        ".type _start,@function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rdx, %r9\n"
        "    popq %rsi\n"
        "    movq %rsp, %rdx\n"
        "    andq $-16, %rsp\n"
        "    pushq %rax\n"
        "    pushq %rsp\n"
        "    xorl %r8d, %r8d\n"
        "    xorl %ecx, %ecx\n"
        "    movq main@GOTPCREL(%rip), %rdi\n"
        "    call *__libc_start_main@GOTPCREL(%rip)\n"
        "    hlt\n");
#elif defined(__aarch64__) && !defined(XPU_SIM_COMMON_START)
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.17\n"
        /* As above; x0 is the function to call at exit. */
        ".globl _start\n"
        ".type _start,%function\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x5, x0\n"
        "    ldr x1, [sp]\n"
        "    add x2, sp, #8\n"
        "    mov x6, sp\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    adrp x0, :got:main\n"
        "    ldr x0, [x0, #:got_lo12:main]\n"
        "    bl __libc_start_main\n"
        "    brk #0\n");
#endif
