/* What the environment of a preloaded program asks for: how much is logged, what
 * CUDA_DEVICE_SM_LIMIT is, and that a process leaves its job once, however often it is told to
 * end. Each case is a process of its own, in a job of its own. */
#include <elf.h>
#include <link.h>

#include "held.h"

/* How often a text is in the log. */
static unsigned logged(const char *text)
{
	static char all[1 << 16];
	FILE *f = fopen(getenv("RATION_LOG_FILE"), "r");
	size_t n = f ? fread(all, 1, sizeof all - 1, f) : 0;
	unsigned count = 0;
	all[n] = 0;
	if (f)
		fclose(f);
	for (const char *at = all; (at = strstr(at, text)); at++)
		count++;
	return count;
}

static int speaks(void)
{
	start();
	return checks_failed > 0;
}

static const char *log_path;

/* level runs a program at a level: whether its log has warnings, and what happened. */
static void level(const char *variable, const char *value, bool warns, bool informs)
{
	unlink(log_path);
	EQ(AGAIN("speak", "RATION_LOG_FILE", log_path, "CUDA_OVERSUBSCRIBE", "1", variable, value), 0);
	EQ(logged("CUDA_OVERSUBSCRIBE=1 has no effect"), warns);
	EQ(logged("leaving slot"), informs);
}

static void forced(unsigned share, unsigned cap)
{
	start();
	EQ(region_share(region_here(), 0), share);
	EQ(region_cap(region_here(), 0), cap);
}

/* fini calls what a library runs at exit. */
static int fini(struct dl_phdr_info *info, size_t size, void *name)
{
	(void)size;
	if (!strstr(info->dlpi_name, name))
		return 0;
	const ElfW(Dyn) *dynamic = NULL;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	ElfW(Addr) array = 0;
	size_t bytes = 0;
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		array = dynamic->d_tag == DT_FINI_ARRAY ? dynamic->d_un.d_ptr : array;
		bytes = dynamic->d_tag == DT_FINI_ARRAYSZ ? dynamic->d_un.d_val : bytes;
	}
	array += array < info->dlpi_addr ? info->dlpi_addr : 0;
	for (size_t i = bytes / sizeof(ElfW(Addr)); i-- > 0;)
		((void (*const *)(void))array)[i]();
	return 1;
}

static int leaves(void)
{
	start();
	EQ(dl_iterate_phdr(fini, "libration"), 1);
	EQ(logged("leaving slot"), 1);
	EQ(dl_iterate_phdr(fini, "libration"), 1);
	EQ(logged("leaving slot"), 1);
	return checks_failed > 0;
}

/* in_job names a job of its own for what comes next. */
static void in_job(void)
{
	static unsigned n;
	static char path[4200], first[4096];
	if (n == 0)
		snprintf(first, sizeof first, "%s", getenv("RATION_REGION"));
	snprintf(path, sizeof path, "%s%u", first, ++n);
	setenv("RATION_REGION", path, 1);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "speak"))
		return speaks();
	if (argc > 1 && !strcmp(argv[1], "leave"))
		return leaves();
	if (argc > 1) {
		forced(!strcmp(argv[1], "share") ? 30 : 0, !strcmp(argv[1], "cap") ? 30 : 0);
		return checks_failed > 0;
	}
	log_path = getenv("RATION_LOG_FILE");
	static const char *const variables[] = {"LIBCUDA_LOG_LEVEL", "LOG_LEVEL"};
	for (int i = 0; i < 2; i++) {
		in_job();
		level(variables[i], "0", false, false);
		in_job();
		level(variables[i], "1", true, false);
		in_job();
		level(variables[i], "2", true, false);
		in_job();
		level(variables[i], "3", true, true);
	}
	in_job();
	EQ(AGAIN("share", "CUDA_DEVICE_SM_LIMIT", "30"), 0);
	in_job();
	EQ(AGAIN("cap", "CUDA_DEVICE_SM_LIMIT", "30", "GPU_CORE_UTILIZATION_POLICY", "force"), 0);
	in_job();
	EQ(AGAIN("neither", "CUDA_DEVICE_SM_LIMIT", "30", "GPU_CORE_UTILIZATION_POLICY", "disable"), 0);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which run something of theirs at exit */
	in_job();
	unlink(log_path);
	EQ(AGAIN("leave", "RATION_LOG", "info"), 0);
#endif
	return FINISH();
}
