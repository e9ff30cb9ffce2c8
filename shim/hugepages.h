/* Huge pages for the host memory into which the driver puts device memory aside at a checkpoint.
 *
 * The driver makes that memory by one mmap of the whole size with MAP_POPULATE, inside the process
 * that is put to sleep. The kernel then fills it with small pages, one after another, before the
 * first byte is copied: on an H200 that is half of the time of a checkpoint. */
#ifndef RATION_HUGEPAGES_H
#define RATION_HUGEPAGES_H

/* hugepages_begin makes the driver use huge pages there. It binds only the driver's own references
 * to mmap; a driver without any behaves as before. Any job can be put to sleep, so every process
 * that has joined a job calls it, after cuInit. The caller must hold no lock. */
void hugepages_begin(void);

#endif
