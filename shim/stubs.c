/* dlsym and dlvsym. The meaning of RTLD_NEXT and RTLD_DEFAULT depends on the caller, which the
 * real functions know by their return address. So if ration_pick leaves a lookup to them, the
 * stub jumps there with the registers and the stack unchanged: they see our caller, and never
 * this library. */
#if defined(__x86_64__)

/* (handle, name[, version]) in rdi, rsi, rdx; the caller is on the stack.
 * ration_pick(handle, name, version, caller, &result) */
#define STUB(name, load_version)                                                                               \
	__asm__(".text\n"                                                                                      \
		".globl " #name "\n"                                                                           \
		".type " #name ", @function\n"                                                                 \
		".p2align 4\n" #name ":\n"                                                                     \
		".cfi_startproc\n"                                                                             \
		"	.byte 0xf3, 0x0f, 0x1e, 0xfa\n" /* endbr64, also for assemblers that do not know it */ \
		"	subq $40, %rsp\n"                                                                            \
		".cfi_adjust_cfa_offset 40\n"                                                                  \
		"	movq %rdi, 8(%rsp)\n"                                                                        \
		"	movq %rsi, 16(%rsp)\n"                                                                       \
		"	movq %rdx, 24(%rsp)\n" load_version "	movq 40(%rsp), %rcx\n"                           \
		"	movq %rsp, %r8\n"                                                                            \
		"	call ration_pick\n"                                                                          \
		"	testb %al, %al\n"                                                                            \
		"	movq (%rsp), %rax\n"                                                                         \
		"	movq 8(%rsp), %rdi\n"                                                                        \
		"	movq 16(%rsp), %rsi\n"                                                                       \
		"	movq 24(%rsp), %rdx\n"                                                                       \
		"	leaq 40(%rsp), %rsp\n"                                                                       \
		".cfi_adjust_cfa_offset -40\n"                                                                 \
		"	je 1f\n"                                                                                     \
		"	ret\n"                                                                                       \
		"1:	jmp *ration_real_" #name "(%rip)\n"                                                    \
		".cfi_endproc\n"                                                                               \
		".size " #name ", .-" #name "\n")

STUB(dlsym, "	xorl %edx, %edx\n");
STUB(dlvsym, "");

#elif defined(__aarch64__)

/* (handle, name[, version]) in x0, x1, x2; the caller is in x30. */
#define STUB(name, load_version)                                           \
	__asm__(".text\n"                                                  \
		".globl " #name "\n"                                       \
		".type " #name ", %function\n"                             \
		".p2align 4\n" #name ":\n"                                 \
		".cfi_startproc\n"                                         \
		"	hint #34\n" /* bti c */                            \
		"	stp x29, x30, [sp, #-64]!\n"                             \
		".cfi_adjust_cfa_offset 64\n"                              \
		".cfi_offset 29, -64\n"                                    \
		".cfi_offset 30, -56\n"                                    \
		"	mov x29, sp\n"                                           \
		"	stp x0, x1, [sp, #16]\n"                                 \
		"	str x2, [sp, #32]\n" load_version "	mov x3, x30\n" \
		"	add x4, sp, #40\n"                                       \
		"	bl ration_pick\n"                                        \
		"	and w9, w0, #255\n"                                      \
		"	ldr x10, [sp, #40]\n"                                    \
		"	ldp x0, x1, [sp, #16]\n"                                 \
		"	ldr x2, [sp, #32]\n"                                     \
		"	ldp x29, x30, [sp], #64\n"                               \
		".cfi_restore 30\n"                                        \
		".cfi_restore 29\n"                                        \
		".cfi_adjust_cfa_offset -64\n"                             \
		"	cbz w9, 1f\n"                                            \
		"	mov x0, x10\n"                                           \
		"	ret\n"                                                   \
		"1:	adrp x16, ration_real_" #name "\n"                 \
		"	ldr x16, [x16, #:lo12:ration_real_" #name "]\n"    \
		"	br x16\n"                                                \
		".cfi_endproc\n"                                           \
		".size " #name ", .-" #name "\n")

STUB(dlsym, "	mov x2, xzr\n");
STUB(dlvsym, "");

#else
#error "stubs for this processor are missing"
#endif
