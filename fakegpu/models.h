/* The devices a machine is made of, as data, and the text that names a machine. */
#ifndef FAKEGPU_MODELS_H
#define FAKEGPU_MODELS_H

#include <stddef.h>
#include <stdint.h>

/* Eight GPUs of seven MIG devices each are 56. GPUs are fewer: each has a bus number of its own. */
enum { MAX_DEVICES = 64, MAX_GPUS = 16, MAX_PROCESSES = 1024 };

struct model {
	const char *key;   /* as written in FAKEGPU */
	const char *name;  /* as the driver says it */
	uint64_t mib;      /* NVML's total */
	uint64_t reserved; /* KiB of it that the driver keeps for itself */
	uint64_t context;  /* MiB that one context costs */
	int major, minor;  /* compute capability */
	int sms;
	unsigned parts;   /* MIG devices of a GPU, of which this is one; 0 for a GPU that is not divided */
	const char *gpu;  /* that GPU's name */
	uint64_t gpu_mib; /* and NVML's total of it */
};

struct shape {
	const struct model *model;
	unsigned devices;
	uint64_t bytes;    /* per device: NVML's total */
	uint64_t reserved; /* per device; nothing where the size was given by hand */
};

/* Parses MODEL[xCOUNT][:SIZE], as in "h200x2" or "small:512m". 0 or -1. */
int shape_parse(const char *text, struct shape *out);

/* Parses "512", "64k", "512m", "1g" and the like. 0 or -1. */
int size_parse(const char *text, uint64_t *out);

/* The UUID of device i: the same on every run, different for every model and index. */
void model_uuid(const struct model *m, unsigned i, unsigned char out[16]);

/* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" with its terminator. */
enum { UUID_TEXT = 41 };
void uuid_text(const unsigned char uuid[16], char out[UUID_TEXT]);

/* The same of device i, with MIG- if it is a part of a GPU, and of GPU i that is divided. */
void model_uuid_text(const struct model *m, unsigned i, char out[UUID_TEXT]);
void model_gpu_uuid(const struct model *m, unsigned gpu, unsigned char out[16]);

/* The GPU that device i is, or is a part of. */
unsigned model_gpu(const struct model *m, unsigned i);

/* "00000000:XX:00.0" of a GPU, and its bus number. */
enum { BUS_TEXT = 17 };
unsigned bus_number(unsigned i);
void bus_text(unsigned i, char out[BUS_TEXT]);

#endif
