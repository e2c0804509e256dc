/* SPDX-License-Identifier: Apache-2.0 */
/** The pieces that a buffer of a GPU lies in (pieces.h). */
#ifndef FERRY_DEVICE_CUDA_PIECES_H
#define FERRY_DEVICE_CUDA_PIECES_H

#include "rank-lib/device/pieces.h"

extern const struct ferry_pieces_ops ferry_cuda_pieces;

#endif
