/* What the variables of images take: PTX, and cubins. */
#include "../image.c"

#include <stddef.h>
#include <sys/mman.h>

#include "check.h"

#define HEAD "// made by hand\n.version 8.0\n.target sm_90\n.address_size 64\n"

static void ptx(void)
{
	EQ(image_variables(NULL), 0);
	EQ(image_variables("not an image"), 0);
	EQ(image_variables(".visible .global .b8 a[100];"), 0); /* without a version it is no PTX */
	EQ(image_variables(HEAD), 0);
	EQ(image_variables(HEAD ".visible .global .align 4 .b8 a[100];\n"), 100);
	EQ(image_variables(HEAD ".visible .global .u64 a;.visible .global .f32 b[3][5];"), 8 + 60);
	EQ(image_variables(HEAD ".visible\t.global /* of [7] */ .align 16 .b32 a[4] = {1, 2, 3, 4};\n"), 16);
	EQ(image_variables(HEAD "/* .visible .global .b8 a[100]; */\n// .visible .global .b8 a[100];\n"), 0);
	EQ(image_variables(HEAD ".extern .global .b8 a[100];\n.global .b8 own[100];\n.visible .const .b8 c[100];\n"), 0);
	EQ(image_variables(HEAD ".visible .global .attribute(.managed) .b8 a[100];\n"), 0);
	EQ(image_variables(HEAD ".visible .entry k() {\n .visible .global .b8 a[100];\n ld.global.u32 r, [a]; }\n"), 0);
	EQ(image_variables(HEAD ".visible .global .b8 a[99999999999999999999];\n"), 0);
	EQ(image_variables(HEAD ".file 1 \"{\"\n.visible .global .b8 a[100];\n"), 100);
	EQ(image_variables(HEAD "/* no end"), 0);
}

static struct {
	Elf64_Ehdr head;
	Elf64_Shdr sections[5];
	char names[64];
} cubin = {
	.head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64},
		 .e_machine = EM_CUDA,
		 .e_shnum = 5,
		 .e_shentsize = sizeof(Elf64_Shdr),
		 .e_shstrndx = 1},
	.sections = {{0},
		     {.sh_name = 0},
		     {.sh_name = 1, .sh_type = SHT_NOBITS, .sh_size = 1000},
		     {.sh_name = 12, .sh_size = 24},
		     {.sh_name = 28, .sh_type = SHT_NOBITS, .sh_size = 7}},
	.names = "\0.nv.global\0.nv.global.init\0.nv.shared.k",
};

static void cubins(void)
{
	cubin.head.e_shoff = offsetof(__typeof__(cubin), sections);
	cubin.sections[1].sh_offset = offsetof(__typeof__(cubin), names);
	EQ(image_variables(&cubin), 1024);
	cubin.head.e_machine = EM_X86_64; /* the driver refuses it, and it may be cut short */
	EQ(image_variables(&cubin), 0);
	cubin.head.e_machine = EM_CUDA;
	cubin.head.e_shstrndx = 5;
	EQ(image_variables(&cubin), 0);
	cubin.head.e_shoff = 0;
	EQ(image_variables(&cubin), 0);
}

/* Nothing is read behind the end of a text, which may be shorter than the mark of a cubin. */
static void ends(void)
{
	enum { PAGE = 65536 };
	char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	EQ(mprotect(at + PAGE, PAGE, PROT_NONE), 0);
	static const char *const texts[] = {"", "x", " ", "/", "\177", "\177EL", ".version", HEAD ".visible", HEAD ".visible .global"};
	for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
		size_t size = strlen(texts[i]) + 1;
		EQ(image_variables(memcpy(at + PAGE - size, texts[i], size)), 0);
	}
	munmap(at, 2 * PAGE);
}

int main(void)
{
	ptx();
	ends();
	cubins();
	return FINISH();
}
