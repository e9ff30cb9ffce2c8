/* Sandboxes that refuse system calls they do not know: a question that could not be asked is not
 * answered. faccessat2 is one of them, which the C library's faccessat makes. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "stranger.h"

#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

static void refuse_faccessat2(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_faccessat2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

int main(void)
{
	CUdeviceptr p;
	refuse_faccessat2();
	start();
	OK(cuMemAlloc_v2(&p, MIB));
	SAME();
	EQ(cuMemAlloc_v2(&p, 1024 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	return FINISH();
}
