/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of every driver library that only has to be there: compiled once, linked under each of
 * NVIDIA's names and SONAMEs.
 * Must not: need any other library, so that it loads in every image.
 */
#include "sys.h"

EXPORT const char *gpunode_driver_version(void) { return DRIVER_VERSION; }
