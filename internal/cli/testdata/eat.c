/* A small CUDA program. Each word is done in turn; its exit status is that of the
 * last call that failed.
 *
 *   SIZE        takes so many MiB, and says how that went
 *   total       says how large the device is, in MiB
 *   end         ends its context, with all memory
 *   begin       makes another
 *   ready=FILE  makes a file
 *   child=FILE  forks a child that waits for a signal, and writes its PID into a file
 *   pause       waits for a signal, for a minute at most
 *   await=FILE  waits until there is a file, for a minute at most
 *   unmap       unmaps the job's region, and drops the lock on it
 *
 * Built with -DLINKED it is linked with the driver, otherwise it loads it, by the
 * name in EAT_DRIVER if there is one; with EAT=proc it asks cuGetProcAddress for
 * everything, as newer programs do; with EAT=libc it asks the dlsym that it finds in the C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long address;

#ifdef LINKED
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuMemAlloc_v2(address *, size_t);
int cuDeviceTotalMem_v2(size_t *, int);
#define FIND(name, symbol) (void *)symbol
#else
static void *lib;
static void *find(const char *name, const char *symbol)
{
	int (*proc)(const char *, void **, int, uint64_t, int *) =
		(int (*)(const char *, void **, int, uint64_t, int *))dlsym(lib, "cuGetProcAddress_v2");
	void *found = NULL;
	const char *way = getenv("EAT");
	if (way && !strcmp(way, "libc"))
		return ((void *(*)(void *, const char *))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym"))(lib, symbol);
	if (!way || strcmp(way, "proc"))
		return dlsym(lib, symbol);
	return proc && proc(name, &found, 11030, 0, NULL) == 0 ? found : NULL;
}
#define FIND(name, symbol) find(#name, #symbol)
#endif

/* Unmaps the region as a program could that means to: no word of it is written. */
static void unmap(void)
{
	const char *region = "/run/ration/job/region";
	char line[4096];
	unsigned long from[16], to[16];
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && n < 16 && fgets(line, sizeof line, maps))
		if (strstr(line, region) && sscanf(line, "%lx-%lx", &from[n], &to[n]) == 2)
			n++;
	if (maps)
		fclose(maps);
	while (n-- > 0)
		munmap((void *)from[n], to[n] - from[n]);
	close(open(region, O_RDONLY));
}

int main(int argc, char **argv)
{
#ifndef LINKED
	const char *driver = getenv("EAT_DRIVER");
	if (!(lib = dlopen(driver ? driver : "libcuda.so.1", RTLD_NOW))) {
		puts("no driver");
		return 90;
	}
#endif
	int (*init)(unsigned) = (int (*)(unsigned))FIND(cuInit, cuInit);
	int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))FIND(cuCtxCreate, cuCtxCreate_v2);
	int (*destroy)(void *) = (int (*)(void *))FIND(cuCtxDestroy, cuCtxDestroy_v2);
	int (*alloc)(address *, size_t) = (int (*)(address *, size_t))FIND(cuMemAlloc, cuMemAlloc_v2);
	int (*total)(size_t *, int) = (int (*)(size_t *, int))FIND(cuDeviceTotalMem, cuDeviceTotalMem_v2);
	int status = 0, result;
	size_t bytes;
	void *context;
	address a;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if ((result = init(0)) || (result = create(&context, 0, 0))) {
		printf("start: %d\n", result);
		return 91;
	}
	for (int i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "ready=", 6)) {
			close(open(argv[i] + 6, O_CREAT | O_WRONLY, 0600));
		} else if (!strncmp(argv[i], "child=", 6)) {
			pid_t pid = fork();
			if (pid == 0) {
				close(0), close(1), close(2);
				alarm(60);
				pause();
				_exit(0);
			}
			FILE *f = fopen(argv[i] + 6, "w");
			fprintf(f, "%d\n", (int)pid);
			fclose(f);
		} else if (!strncmp(argv[i], "await=", 6)) {
			for (int n = 0; n < 6000 && access(argv[i] + 6, F_OK) != 0; n++)
				usleep(10000);
		} else if (!strcmp(argv[i], "pause")) {
			alarm(60);
			pause();
		} else if (!strcmp(argv[i], "end") || !strcmp(argv[i], "begin")) {
			result = argv[i][0] == 'e' ? destroy(context) : create(&context, 0, 0);
			status = result ? result : status;
		} else if (!strcmp(argv[i], "unmap")) {
			unmap();
		} else if (!strcmp(argv[i], "total")) {
			result = total(&bytes, 0);
			printf("total %zu MiB\n", bytes >> 20);
		} else {
			result = alloc(&a, strtoull(argv[i], NULL, 10) << 20);
			printf("%s MiB: %s\n", argv[i], result == 0 ? "ok" : result == 2 ? "out of memory" : "error");
			status = result ? result : status;
		}
	}
	return status;
}
