/* A program to run in jobs, by scripts: what it does is in its arguments, one word
 * for each step. It prints what it found, and ends as it is told. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#include "check.h"
#include "later.h"

static CUdeviceptr last;

static void handler(int sig)
{
	(void)sig;
	exit(42);
}

static void *init_small(void *arg)
{
	*(int *)arg = cuInit(0);
	return NULL;
}

static int seize(const char *path, short type)
{
	struct flock all = {.l_type = type, .l_whence = SEEK_SET};
	int fd = open(path, O_RDWR | O_CLOEXEC);
	return fd < 0 ? -1 : fcntl(fd, F_SETLK, &all);
}

/* A thread with a very small stack joins the job. */
static int small(void)
{
	pthread_attr_t a;
	pthread_t t;
	int result = -1;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, (size_t)PTHREAD_STACK_MIN);
	pthread_create(&t, &a, init_small, &result);
	pthread_join(t, NULL);
	return result;
}

static int run(char **words);

/* A child by fork, or by the bare system call. */
static void child(char **words, bool bare)
{
	int status;
	fflush(NULL);
	pid_t pid = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (pid == 0)
		exit(run(words));
	waitpid(pid, &status, 0);
	printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static int count_fds(void)
{
	int n = 0;
	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static int step(const char *w, const char *arg)
{
	CUcontext c;
	size_t f = 0, t = 0;
	unsigned n;
	int r;
	if (!strcmp(w, "init"))
		printf("init %d\n", cuInit(0));
	else if (!strcmp(w, "small"))
		printf("init %d\n", small());
	else if (!strcmp(w, "context"))
		printf("context %d\n", cuDevicePrimaryCtxRetain(&c, atoi(arg)) ?: cuCtxSetCurrent(c));
	else if (!strcmp(w, "create"))
		printf("create %d\n", cuCtxCreate_v2(&c, 0, atoi(arg)));
	else if (!strcmp(w, "alloc"))
		printf("alloc %d\n", cuMemAlloc_v2(&last, (size_t)atoll(arg)));
	else if (!strcmp(w, "free"))
		printf("free %d\n", cuMemFree_v2(last));
	else if (!strcmp(w, "info") && (r = cuMemGetInfo_v2(&f, &t), true))
		printf("info %d %zu %zu\n", r, t, f);
	else if (!strcmp(w, "total") && (r = cuDeviceTotalMem_v2(&t, atoi(arg)), true))
		printf("total %d %zu\n", r, t);
	else if (!strcmp(w, "later"))
		later();
	else if (!strcmp(w, "nvml")) /* is it up? */
		printf("nvml %d\n", nvmlDeviceGetCount_v2(&n) != NVML_ERROR_UNINITIALIZED);
	else if (!strcmp(w, "fds"))
		printf("fds %d\n", count_fds());
	else if (!strcmp(w, "catch"))
		signal(atoi(arg), handler);
	else if (!strcmp(w, "raise"))
		raise(atoi(arg));
	else if (!strcmp(w, "abort"))
		abort();
	else if (!strcmp(w, "exit"))
		exit(atoi(arg));
	else if (!strcmp(w, "_exit"))
		_exit(atoi(arg));
	else if (!strcmp(w, "wait"))
		pause();
	else if (!strcmp(w, "sleep"))
		usleep((useconds_t)atoi(arg) * 1000);
	else if (!strcmp(w, "seize")) /* all of the region's bytes, without joining */
		printf("seize %d\n", seize(getenv("RATION_REGION"), F_WRLCK));
	else if (!strcmp(w, "peek")) /* the same, for reading */
		printf("seize %d\n", seize(getenv("RATION_REGION"), F_RDLCK));
	else if (!strcmp(w, "close"))
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
	else
		return -1;
	fflush(stdout);
	return 0;
}

/* Words with an argument have it behind a colon. */
static int run(char **words)
{
	for (; *words != NULL; words++) {
		char *arg = strchr(*words, ':');
		if (arg != NULL)
			*arg++ = '\0';
		if (!strcmp(*words, "exec")) {
			*words = "job";
			return execv("/proc/self/exe", words);
		} else if (!strcmp(*words, "fork") || !strcmp(*words, "clone")) {
			char **end = words + 1;
			while (*end != NULL && strcmp(*end, "end") != 0)
				end++;
			char *was = *end;
			*end = NULL;
			child(words + 1, !strcmp(*words, "clone"));
			*end = was;
			words = was == NULL ? end - 1 : end;
		} else if (step(*words, arg == NULL ? "0" : arg) != 0) {
			fprintf(stderr, "what is %s?\n", *words);
			return 64;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	(void)argc;
	return run(argv + 1);
}
