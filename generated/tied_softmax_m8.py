"""tied_softmax_m8: trace-moment equations to order 8, with their couplings.

Written by tracewords 0.1.0 for model digest 20eb806f79982e5c; do not edit.
`rhs` is d mu / dt, t = 4 alpha n / d (n steps of SGD, step size alpha); mu[i] = tr(WORDS[i]), tr = Tr / d.
"""

import math

import numpy as np

NAME = "tied-softmax"
MODEL_DIGEST = "20eb806f79982e5c"
VERSION = "0.1.0"
ORDER = 8
TIME = "t"
TIME_UNIT = "4 alpha n / d"
LETTERS = ("S1", "S2")
WORD_LETTERS = ("S1", "S2")
ADJOINT = {"S1": "S1", "S2": "S2"}
STUDENTS = ("S1",)
KINDS = {"S1": "tied", "S2": "tied"}
RANK_RATIOS = {"S1": 1.0, "S2": 1.0}
LAWS = {"S1": ("marchenko-pastur", {"ratio": 1.0}), "S2": ("marchenko-pastur", {"ratio": 1.0})}
COVARIANCE = ((1.0, 0.0), (0.0, 1.0))
PARAMETERS = {"beta": 1.0, "gamma": 0.0, "kappa": 0.0}
WORDS = (
    "S1", "S2", "S1.S1", "S1.S2", "S2.S2", "S1.S1.S1", "S1.S1.S2", "S1.S2.S2", "S2.S2.S2", "S1.S1.S1.S1",
    "S1.S1.S1.S2", "S1.S1.S2.S2", "S1.S2.S1.S2", "S1.S2.S2.S2", "S2.S2.S2.S2", "S1.S1.S1.S1.S1",
    "S1.S1.S1.S1.S2", "S1.S1.S1.S2.S2", "S1.S1.S2.S1.S2", "S1.S1.S2.S2.S2", "S1.S2.S1.S2.S2",
    "S1.S2.S2.S2.S2", "S2.S2.S2.S2.S2", "S1.S1.S1.S1.S1.S1", "S1.S1.S1.S1.S1.S2", "S1.S1.S1.S1.S2.S2",
    "S1.S1.S1.S2.S1.S2", "S1.S1.S1.S2.S2.S2", "S1.S1.S2.S1.S1.S2", "S1.S1.S2.S1.S2.S2", "S1.S1.S2.S2.S2.S2",
    "S1.S2.S1.S2.S1.S2", "S1.S2.S1.S2.S2.S2", "S1.S2.S2.S1.S2.S2", "S1.S2.S2.S2.S2.S2", "S2.S2.S2.S2.S2.S2",
    "S1.S1.S1.S1.S1.S1.S1", "S1.S1.S1.S1.S1.S1.S2", "S1.S1.S1.S1.S1.S2.S2", "S1.S1.S1.S1.S2.S1.S2",
    "S1.S1.S1.S1.S2.S2.S2", "S1.S1.S1.S2.S1.S1.S2", "S1.S1.S1.S2.S1.S2.S2", "S1.S1.S1.S2.S2.S2.S2",
    "S1.S1.S2.S1.S1.S2.S2", "S1.S1.S2.S1.S2.S1.S2", "S1.S1.S2.S1.S2.S2.S2", "S1.S1.S2.S2.S1.S2.S2",
    "S1.S1.S2.S2.S2.S2.S2", "S1.S2.S1.S2.S1.S2.S2", "S1.S2.S1.S2.S2.S2.S2", "S1.S2.S2.S1.S2.S2.S2",
    "S1.S2.S2.S2.S2.S2.S2", "S2.S2.S2.S2.S2.S2.S2", "S1.S1.S1.S1.S1.S1.S1.S1", "S1.S1.S1.S1.S1.S1.S1.S2",
    "S1.S1.S1.S1.S1.S1.S2.S2", "S1.S1.S1.S1.S1.S2.S1.S2", "S1.S1.S1.S1.S1.S2.S2.S2",
    "S1.S1.S1.S1.S2.S1.S1.S2", "S1.S1.S1.S1.S2.S1.S2.S2", "S1.S1.S1.S1.S2.S2.S2.S2",
    "S1.S1.S1.S2.S1.S1.S1.S2", "S1.S1.S1.S2.S1.S1.S2.S2", "S1.S1.S1.S2.S1.S2.S1.S2",
    "S1.S1.S1.S2.S1.S2.S2.S2", "S1.S1.S1.S2.S2.S1.S2.S2", "S1.S1.S1.S2.S2.S2.S2.S2",
    "S1.S1.S2.S1.S1.S2.S1.S2", "S1.S1.S2.S1.S1.S2.S2.S2", "S1.S1.S2.S1.S2.S1.S2.S2",
    "S1.S1.S2.S1.S2.S2.S1.S2", "S1.S1.S2.S1.S2.S2.S2.S2", "S1.S1.S2.S2.S1.S1.S2.S2",
    "S1.S1.S2.S2.S1.S2.S2.S2", "S1.S1.S2.S2.S2.S2.S2.S2", "S1.S2.S1.S2.S1.S2.S1.S2",
    "S1.S2.S1.S2.S1.S2.S2.S2", "S1.S2.S1.S2.S2.S1.S2.S2", "S1.S2.S1.S2.S2.S2.S2.S2",
    "S1.S2.S2.S1.S2.S2.S2.S2", "S1.S2.S2.S2.S1.S2.S2.S2", "S1.S2.S2.S2.S2.S2.S2.S2",
    "S2.S2.S2.S2.S2.S2.S2.S2",
)
BOUNDARY = (
    "S1.S1.S1.S1.S1.S1.S1.S1.S1", "S1.S1.S1.S1.S1.S1.S1.S1.S2", "S1.S1.S1.S1.S1.S1.S1.S2.S2",
    "S1.S1.S1.S1.S1.S1.S2.S1.S2", "S1.S1.S1.S1.S1.S1.S2.S2.S2", "S1.S1.S1.S1.S1.S2.S1.S1.S2",
    "S1.S1.S1.S1.S1.S2.S1.S2.S2", "S1.S1.S1.S1.S1.S2.S2.S2.S2", "S1.S1.S1.S1.S2.S1.S1.S1.S2",
    "S1.S1.S1.S1.S2.S1.S1.S2.S2", "S1.S1.S1.S1.S2.S1.S2.S1.S2", "S1.S1.S1.S1.S2.S1.S2.S2.S2",
    "S1.S1.S1.S1.S2.S2.S1.S2.S2", "S1.S1.S1.S1.S2.S2.S2.S2.S2", "S1.S1.S1.S2.S1.S1.S1.S2.S2",
    "S1.S1.S1.S2.S1.S1.S2.S1.S2", "S1.S1.S1.S2.S1.S1.S2.S2.S2", "S1.S1.S1.S2.S1.S2.S1.S2.S2",
    "S1.S1.S1.S2.S1.S2.S2.S1.S2", "S1.S1.S1.S2.S1.S2.S2.S2.S2", "S1.S1.S1.S2.S2.S1.S1.S2.S2",
    "S1.S1.S1.S2.S2.S1.S2.S2.S2", "S1.S1.S1.S2.S2.S2.S2.S2.S2", "S1.S1.S2.S1.S1.S2.S1.S1.S2",
    "S1.S1.S2.S1.S1.S2.S1.S2.S2", "S1.S1.S2.S1.S1.S2.S2.S2.S2", "S1.S1.S2.S1.S2.S1.S1.S2.S2",
    "S1.S1.S2.S1.S2.S1.S2.S1.S2", "S1.S1.S2.S1.S2.S1.S2.S2.S2", "S1.S1.S2.S1.S2.S2.S1.S2.S2",
    "S1.S1.S2.S1.S2.S2.S2.S1.S2", "S1.S1.S2.S1.S2.S2.S2.S2.S2", "S1.S1.S2.S2.S1.S1.S2.S2.S2",
    "S1.S1.S2.S2.S1.S2.S1.S2.S2", "S1.S1.S2.S2.S1.S2.S2.S2.S2", "S1.S1.S2.S2.S2.S1.S2.S2.S2",
    "S1.S1.S2.S2.S2.S2.S2.S2.S2", "S1.S2.S1.S2.S1.S2.S1.S2.S2", "S1.S2.S1.S2.S1.S2.S2.S2.S2",
    "S1.S2.S1.S2.S2.S1.S2.S2.S2", "S1.S2.S1.S2.S2.S2.S2.S2.S2", "S1.S2.S2.S1.S2.S2.S1.S2.S2",
    "S1.S2.S2.S1.S2.S2.S2.S2.S2", "S1.S2.S2.S2.S1.S2.S2.S2.S2", "S1.S2.S2.S2.S2.S2.S2.S2.S2",
)
ORDER_PARAMETERS = ("S1.S1", "S1.S2", "S2.S2")
ARGUMENTS = ("S1.S1", "S1.S2", "S2.S2")
GRAM = ((2, 3), (3, 4))
MEANS = ()
TRACES = ()
COUPLINGS = ("G11", "G12")
NOISE = ("N11",)
FLOW = {
   
    "S1": ((-1.0, "G11", "S1.S1"), (-1.0, "G11", "S1.S1"), (-1.0, "G12", "S2.S1"), (-1.0, "G12", "S1.S2"), (-0.5, "gamma", "S1")),
}
PREACTIVATIONS = (
    ("S1", 1, 1), ("S1", 1, 2), ("S1", 2, 1), ("S1", 2, 2), ("S2", 1, 1), ("S2", 1, 2), ("S2", 2, 1),
    ("S2", 2, 2),
)
DIMENSIONS = (2, 4)
NOISE_DIMENSIONS = (4,)

_Q = np.array([2, 3, 4], dtype=np.intp)
# d mu[row] / dt = sum weight * coefficient * mu[first]; indices past the words are the boundary, then tr(1) = 1
_DRIFT_NAMES = ("G11", "G12", "gamma")
_DRIFT_ROW = np.array([
    0, 0, 0, 2, 2, 2, 3, 3, 3, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11, 12, 12,
    12, 13, 13, 13, 15, 15, 15, 16, 16, 16, 16, 16, 17, 17, 17, 17, 18, 18, 18, 18, 18, 19, 19, 19, 19, 20,
    20, 20, 20, 21, 21, 21, 23, 23, 23, 24, 24, 24, 24, 24, 25, 25, 25, 25, 25, 26, 26, 26, 26, 26, 27, 27,
    27, 27, 28, 28, 28, 28, 29, 29, 29, 29, 29, 29, 30, 30, 30, 30, 31, 31, 31, 32, 32, 32, 32, 33, 33, 33,
    34, 34, 34, 36, 36, 36, 37, 37, 37, 37, 37, 37, 38, 38, 38, 38, 38, 39, 39, 39, 39, 39, 39, 40, 40, 40,
    40, 40, 41, 41, 41, 41, 41, 41, 42, 42, 42, 42, 42, 42, 42, 43, 43, 43, 43, 44, 44, 44, 44, 44, 45, 45,
    45, 45, 45, 45, 46, 46, 46, 46, 46, 46, 47, 47, 47, 47, 47, 48, 48, 48, 48, 49, 49, 49, 49, 49, 50, 50,
    50, 50, 51, 51, 51, 51, 52, 52, 52, 54, 54, 54, 55, 55, 55, 55, 55, 55, 56, 56, 56, 56, 56, 56, 57, 57,
    57, 57, 57, 57, 58, 58, 58, 58, 58, 59, 59, 59, 59, 59, 59, 59, 60, 60, 60, 60, 60, 60, 60, 60, 61, 61,
    61, 61, 61, 62, 62, 62, 62, 63, 63, 63, 63, 63, 63, 63, 63, 64, 64, 64, 64, 64, 64, 65, 65, 65, 65, 65,
    65, 65, 66, 66, 66, 66, 66, 67, 67, 67, 67, 68, 68, 68, 68, 68, 68, 69, 69, 69, 69, 69, 70, 70, 70, 70,
    70, 70, 70, 70, 71, 71, 71, 71, 71, 71, 72, 72, 72, 72, 72, 72, 73, 73, 73, 73, 74, 74, 74, 74, 74, 74,
    75, 75, 75, 75, 76, 76, 76, 77, 77, 77, 77, 77, 78, 78, 78, 78, 78, 79, 79, 79, 79, 80, 80, 80, 80, 81,
    81, 81, 82, 82, 82,
], dtype=np.intp)
_DRIFT_COEFFICIENT = np.array([
    0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1,
    2, 0, 1, 2, 0, 1, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1,
    1, 2, 0, 1, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1,
    1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 1, 1, 2, 0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 1, 1, 1, 2, 0, 0,
    1, 1, 1, 2, 0, 0, 1, 1, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 0, 1,
    1, 2, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1, 1, 1, 2, 0, 1, 1, 1,
    1, 2, 0, 0, 1, 1, 1, 2, 0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 1, 2, 0, 0, 1, 1, 1, 1, 1, 2, 0, 1, 1, 1, 2, 0, 1,
    1, 2, 0, 0, 1, 1, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1,
    1, 1, 2, 0, 1, 1, 1, 2, 0, 0, 0, 1, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 1, 1, 2, 0, 0, 1,
    1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 0, 1, 2,
], dtype=np.intp)
_DRIFT_FIRST = np.array([
    2, 3, 0, 5, 6, 2, 6, 7, 3, 9, 10, 5, 10, 11, 12, 6, 11, 13, 7, 15, 16, 9, 16, 17, 18, 10, 17, 19, 20, 11,
    18, 20, 12, 19, 21, 13, 23, 24, 15, 24, 25, 26, 28, 16, 25, 27, 29, 17, 26, 28, 29, 31, 18, 27, 30, 32,
    19, 29, 32, 33, 20, 30, 34, 21, 36, 37, 23, 37, 38, 39, 41, 24, 38, 40, 42, 44, 25, 39, 41, 42, 45, 26,
    40, 43, 46, 27, 41, 44, 45, 28, 42, 44, 46, 47, 49, 29, 43, 48, 50, 30, 45, 49, 31, 46, 50, 51, 32, 47,
    51, 33, 48, 52, 34, 54, 55, 36, 55, 56, 57, 59, 62, 37, 56, 58, 60, 63, 38, 57, 59, 60, 64, 68, 39, 58,
    61, 65, 69, 40, 59, 62, 63, 64, 68, 41, 60, 63, 65, 66, 70, 71, 42, 61, 67, 72, 43, 63, 69, 70, 73, 44,
    64, 68, 70, 71, 76, 45, 65, 69, 72, 74, 77, 46, 66, 73, 74, 78, 47, 67, 75, 79, 48, 70, 71, 77, 78, 49,
    72, 79, 80, 50, 74, 80, 81, 51, 75, 82, 52, 84, 85, 54, 85, 86, 87, 89, 92, 55, 86, 88, 90, 93, 98, 56,
    87, 89, 90, 94, 99, 57, 88, 91, 95, 100, 58, 89, 92, 93, 94, 99, 107, 59, 90, 93, 95, 96, 101, 102, 108,
    60, 91, 97, 103, 109, 61, 92, 98, 99, 62, 93, 98, 100, 101, 104, 108, 110, 63, 94, 99, 101, 102, 111, 64,
    95, 100, 103, 105, 112, 114, 65, 96, 104, 105, 113, 66, 97, 106, 115, 67, 99, 107, 108, 110, 111, 68, 100,
    109, 112, 116, 69, 101, 108, 110, 112, 113, 117, 121, 70, 102, 108, 113, 114, 121, 71, 103, 109, 115, 118,
    122, 72, 104, 116, 117, 73, 105, 116, 118, 119, 123, 74, 106, 120, 124, 75, 111, 121, 76, 112, 114, 122,
    123, 77, 113, 117, 123, 125, 78, 115, 124, 126, 79, 118, 126, 127, 80, 119, 127, 81, 120, 128, 82,
], dtype=np.intp)
_DRIFT_SECOND = np.array([
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
    129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129, 129,
], dtype=np.intp)
_DRIFT_WEIGHT = np.array([
    -2.0, -2.0, -0.5, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5, -6.0, -6.0, -1.5, -4.0, -2.0, -2.0, -1.0, -2.0,
    -2.0, -0.5, -8.0, -8.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -4.0, -1.0, -2.0,
    -2.0, -0.5, -10.0, -10.0, -2.5, -8.0, -2.0, -4.0, -2.0, -2.0, -6.0, -2.0, -4.0, -1.5, -4.0, -2.0, -4.0,
    -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -2.0, -2.0, -1.0, -2.0, -2.0, -0.5, -12.0, -12.0, -3.0, -10.0,
    -2.0, -4.0, -4.0, -2.5, -8.0, -2.0, -4.0, -2.0, -2.0, -6.0, -2.0, -4.0, -4.0, -2.0, -6.0, -2.0, -4.0,
    -1.5, -8.0, -4.0, -4.0, -2.0, -4.0, -2.0, -2.0, -2.0, -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -6.0, -6.0,
    -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5, -14.0, -14.0, -3.5, -12.0, -2.0, -4.0,
    -4.0, -2.0, -3.0, -10.0, -2.0, -4.0, -4.0, -2.5, -8.0, -2.0, -4.0, -4.0, -2.0, -2.5, -8.0, -2.0, -4.0,
    -2.0, -2.0, -6.0, -4.0, -4.0, -2.0, -4.0, -2.5, -6.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -6.0, -2.0,
    -4.0, -1.5, -8.0, -2.0, -4.0, -2.0, -2.0, -4.0, -4.0, -4.0, -2.0, -2.0, -2.0, -4.0, -2.0, -2.0, -2.0,
    -2.0, -1.5, -4.0, -2.0, -4.0, -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0, -2.0, -2.0, -4.0, -1.5, -4.0,
    -2.0, -2.0, -1.0, -4.0, -2.0, -2.0, -1.0, -2.0, -2.0, -0.5, -16.0, -16.0, -4.0, -14.0, -2.0, -4.0, -4.0,
    -4.0, -3.5, -12.0, -2.0, -4.0, -4.0, -2.0, -3.0, -10.0, -2.0, -4.0, -4.0, -4.0, -3.0, -10.0, -2.0, -4.0,
    -4.0, -2.5, -8.0, -4.0, -4.0, -2.0, -4.0, -2.0, -3.0, -8.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.5,
    -8.0, -2.0, -4.0, -2.0, -2.0, -12.0, -4.0, -8.0, -3.0, -6.0, -4.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.5,
    -6.0, -4.0, -4.0, -2.0, -4.0, -2.5, -6.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -6.0, -2.0, -4.0, -4.0,
    -2.0, -6.0, -2.0, -4.0, -1.5, -8.0, -2.0, -4.0, -2.0, -4.0, -2.5, -8.0, -2.0, -4.0, -2.0, -2.0, -4.0,
    -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -4.0, -4.0, -4.0, -2.0, -2.0, -2.0, -4.0, -2.0, -2.0, -2.0,
    -2.0, -1.5, -8.0, -4.0, -4.0, -2.0, -4.0, -2.0, -2.0, -2.0, -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -8.0,
    -8.0, -2.0, -4.0, -2.0, -2.0, -4.0, -1.5, -4.0, -2.0, -4.0, -2.0, -1.5, -4.0, -2.0, -2.0, -1.0, -4.0,
    -2.0, -2.0, -1.0, -4.0, -4.0, -1.0, -2.0, -2.0, -0.5,
])
_LOOP_NAMES = ("N11",)
_LOOP_ROW = np.array([
    0, 2, 2, 3, 5, 5, 6, 6, 6, 7, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 15, 15, 15, 16, 16, 16,
    16, 16, 17, 17, 17, 17, 18, 18, 18, 18, 18, 18, 19, 19, 19, 20, 20, 20, 20, 21, 23, 23, 23, 23, 24, 24,
    24, 24, 24, 24, 25, 25, 25, 25, 25, 26, 26, 26, 26, 26, 26, 26, 26, 27, 27, 27, 27, 28, 28, 28, 28, 28,
    28, 29, 29, 29, 29, 29, 29, 29, 29, 30, 30, 30, 31, 31, 31, 31, 32, 32, 32, 32, 33, 33, 33, 34, 36, 36,
    36, 36, 37, 37, 37, 37, 37, 37, 37, 38, 38, 38, 38, 38, 38, 39, 39, 39, 39, 39, 39, 39, 39, 39, 40, 40,
    40, 40, 40, 41, 41, 41, 41, 41, 41, 41, 41, 41, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 43, 43, 43, 43,
    44, 44, 44, 44, 44, 44, 44, 44, 45, 45, 45, 45, 45, 45, 45, 45, 45, 45, 46, 46, 46, 46, 46, 46, 46, 46,
    47, 47, 47, 47, 47, 47, 48, 48, 48, 49, 49, 49, 49, 49, 49, 49, 49, 50, 50, 50, 50, 51, 51, 51, 51, 52,
    54, 54, 54, 54, 54, 55, 55, 55, 55, 55, 55, 55, 55, 56, 56, 56, 56, 56, 56, 56, 57, 57, 57, 57, 57, 57,
    57, 57, 57, 57, 57, 58, 58, 58, 58, 58, 58, 59, 59, 59, 59, 59, 59, 59, 59, 59, 59, 59, 60, 60, 60, 60,
    60, 60, 60, 60, 60, 60, 60, 60, 61, 61, 61, 61, 61, 62, 62, 62, 62, 62, 62, 62, 62, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63, 63, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 65, 65, 65, 65, 65, 65, 65,
    65, 65, 65, 66, 66, 66, 66, 66, 66, 66, 66, 67, 67, 67, 67, 68, 68, 68, 68, 68, 68, 68, 68, 68, 68, 68,
    68, 69, 69, 69, 69, 69, 69, 69, 69, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 71, 71,
    71, 71, 71, 71, 71, 71, 71, 71, 71, 72, 72, 72, 72, 72, 72, 72, 72, 73, 73, 73, 73, 73, 73, 74, 74, 74,
    74, 74, 74, 74, 74, 75, 75, 75, 76, 76, 76, 76, 76, 76, 77, 77, 77, 77, 77, 77, 77, 77, 78, 78, 78, 78,
    78, 78, 78, 78, 79, 79, 79, 79, 80, 80, 80, 80, 81, 81, 81, 82,
], dtype=np.intp)
_LOOP_COEFFICIENT = np.array([
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
], dtype=np.intp)
_LOOP_FIRST = np.array([
    0, 0, 2, 0, 0, 5, 0, 1, 6, 0, 0, 2, 9, 0, 1, 2, 10, 0, 2, 11, 0, 1, 3, 0, 0, 2, 15, 0, 1, 2, 3, 16, 0, 2,
    4, 17, 0, 0, 1, 2, 3, 18, 0, 2, 19, 0, 1, 3, 4, 0, 0, 2, 5, 23, 0, 1, 2, 3, 5, 24, 0, 2, 4, 5, 25, 0, 0,
    1, 2, 3, 5, 6, 26, 0, 2, 5, 27, 0, 1, 2, 3, 6, 28, 0, 0, 1, 2, 3, 4, 6, 29, 0, 2, 30, 0, 1, 3, 6, 0, 1, 3,
    6, 0, 4, 7, 0, 0, 2, 5, 36, 0, 1, 2, 3, 5, 6, 37, 0, 2, 4, 5, 7, 38, 0, 0, 1, 2, 3, 5, 6, 7, 39, 0, 2, 5,
    8, 40, 0, 0, 1, 2, 2, 3, 5, 6, 41, 0, 0, 1, 2, 3, 4, 5, 6, 7, 42, 0, 2, 5, 43, 0, 1, 2, 3, 4, 6, 7, 44, 0,
    0, 1, 1, 2, 3, 6, 6, 7, 45, 0, 0, 1, 2, 3, 6, 8, 46, 0, 0, 2, 4, 7, 47, 0, 2, 48, 0, 0, 1, 3, 4, 6, 7, 7,
    0, 1, 3, 6, 0, 4, 7, 8, 0, 0, 2, 5, 9, 54, 0, 1, 2, 3, 5, 6, 9, 55, 0, 2, 4, 5, 7, 9, 56, 0, 0, 1, 2, 3,
    5, 6, 7, 9, 10, 57, 0, 2, 5, 8, 9, 58, 0, 0, 1, 2, 2, 3, 5, 6, 9, 10, 59, 0, 0, 1, 2, 3, 4, 5, 6, 7, 9,
    10, 60, 0, 2, 5, 9, 61, 0, 1, 2, 3, 5, 6, 10, 62, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 10, 63, 0, 0, 1, 1, 2, 3,
    5, 6, 6, 7, 10, 64, 0, 0, 1, 2, 3, 5, 6, 8, 10, 65, 0, 0, 2, 4, 5, 7, 11, 66, 0, 2, 5, 67, 0, 0, 1, 1, 2,
    3, 3, 6, 7, 10, 10, 68, 0, 1, 2, 3, 6, 8, 10, 69, 0, 0, 0, 1, 1, 2, 3, 4, 6, 6, 7, 7, 10, 11, 70, 0, 0, 1,
    2, 3, 4, 6, 7, 10, 11, 71, 0, 0, 1, 2, 3, 6, 10, 72, 0, 2, 4, 7, 11, 73, 0, 0, 2, 4, 7, 8, 11, 74, 0, 2,
    75, 0, 1, 3, 6, 7, 12, 0, 0, 1, 3, 6, 7, 8, 12, 0, 0, 1, 3, 4, 6, 7, 11, 0, 1, 3, 6, 0, 4, 7, 11, 0, 8,
    13, 0,
], dtype=np.intp)
_LOOP_SECOND = np.array([
    129, 0, 129, 1, 2, 129, 3, 2, 129, 4, 5, 2, 129, 6, 5, 3, 129, 7, 4, 129, 7, 6, 3, 8, 9, 5, 129, 10, 9, 6,
    5, 129, 11, 7, 5, 129, 11, 12, 10, 7, 6, 129, 13, 8, 129, 13, 11, 7, 6, 14, 15, 9, 5, 129, 16, 15, 10, 9,
    6, 129, 17, 11, 9, 7, 129, 17, 18, 16, 12, 10, 7, 6, 129, 19, 13, 8, 129, 18, 16, 11, 10, 6, 129, 19, 20,
    17, 13, 11, 10, 7, 129, 21, 14, 129, 20, 18, 12, 7, 21, 19, 13, 8, 21, 11, 7, 22, 23, 15, 9, 129, 24, 23,
    16, 15, 10, 9, 129, 25, 17, 15, 11, 9, 129, 25, 26, 24, 18, 16, 12, 10, 9, 129, 27, 19, 13, 9, 129, 26,
    28, 24, 17, 18, 16, 11, 10, 129, 27, 29, 25, 20, 17, 16, 13, 11, 10, 129, 30, 21, 14, 129, 29, 25, 19, 17,
    16, 11, 10, 129, 29, 31, 26, 28, 20, 18, 11, 12, 10, 129, 30, 32, 27, 21, 19, 13, 10, 129, 30, 33, 21, 17,
    11, 129, 34, 22, 129, 32, 33, 29, 20, 18, 13, 11, 12, 34, 30, 21, 14, 34, 19, 13, 11, 35, 36, 23, 15, 9,
    129, 37, 36, 24, 23, 16, 15, 10, 129, 38, 25, 23, 17, 15, 11, 129, 38, 39, 37, 26, 24, 18, 16, 15, 12, 10,
    129, 40, 27, 19, 15, 13, 129, 39, 41, 37, 25, 28, 24, 18, 16, 11, 10, 129, 40, 42, 38, 29, 25, 24, 20, 17,
    16, 13, 11, 129, 43, 30, 21, 14, 129, 41, 37, 26, 24, 17, 16, 10, 129, 42, 44, 38, 27, 29, 25, 24, 19, 17,
    16, 11, 129, 42, 45, 39, 41, 31, 26, 20, 17, 18, 16, 12, 129, 43, 46, 40, 32, 27, 21, 19, 16, 13, 129, 43,
    47, 33, 25, 21, 17, 11, 129, 48, 34, 22, 129, 44, 45, 39, 41, 29, 26, 28, 18, 16, 11, 12, 129, 46, 40, 30,
    27, 19, 16, 13, 129, 46, 47, 49, 42, 44, 32, 29, 26, 19, 20, 17, 18, 13, 12, 129, 46, 49, 42, 33, 29, 28,
    20, 18, 13, 11, 129, 48, 50, 43, 34, 30, 21, 14, 129, 47, 30, 25, 17, 11, 129, 48, 51, 34, 27, 19, 17, 13,
    129, 52, 35, 129, 49, 45, 31, 20, 18, 12, 50, 51, 46, 32, 21, 19, 18, 13, 50, 51, 47, 33, 29, 21, 20, 13,
    52, 48, 34, 22, 52, 30, 21, 14, 52, 19, 13, 53,
], dtype=np.intp)
_LOOP_WEIGHT = np.array([
    0.25, 1.0, 0.5, 0.25, 3.0, 0.75, 1.0, 0.25, 0.25, 0.25, 4.0, 2.0, 1.0, 2.0, 0.25, 1.0, 0.5, 1.0, 0.25,
    0.25, 0.5, 0.5, 0.5, 0.25, 5.0, 5.0, 1.25, 3.0, 0.25, 2.0, 1.0, 0.75, 2.0, 1.0, 0.25, 0.5, 0.25, 1.0, 0.5,
    0.25, 1.5, 0.25, 1.0, 0.25, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25, 6.0, 6.0, 3.0, 1.5, 4.0, 0.25, 3.0, 1.0,
    2.0, 1.0, 3.0, 2.0, 0.25, 1.0, 0.75, 0.25, 2.0, 0.5, 1.0, 1.5, 0.25, 1.0, 0.5, 2.0, 1.0, 0.25, 0.5, 2.0,
    0.5, 0.5, 2.0, 1.5, 0.5, 0.25, 1.0, 0.25, 0.25, 0.75, 0.25, 0.75, 0.25, 1.0, 0.25, 0.25, 0.75, 0.75, 1.5,
    0.75, 0.5, 0.25, 0.5, 0.25, 0.5, 0.5, 0.5, 0.25, 7.0, 7.0, 7.0, 1.75, 5.0, 0.25, 4.0, 1.0, 3.0, 2.0, 1.25,
    4.0, 3.0, 0.25, 2.0, 1.0, 1.0, 0.25, 3.0, 0.5, 2.0, 1.5, 1.0, 2.0, 0.25, 0.75, 3.0, 2.0, 1.0, 0.25, 0.75,
    1.0, 2.0, 0.5, 0.25, 1.0, 2.0, 0.25, 3.5, 0.75, 0.25, 2.0, 0.25, 1.0, 0.75, 0.25, 0.25, 1.0, 0.75, 0.5,
    2.0, 1.0, 0.25, 0.5, 2.0, 0.25, 0.5, 1.0, 0.25, 1.5, 1.0, 0.5, 0.5, 1.0, 0.5, 0.25, 0.25, 2.0, 0.25, 1.5,
    0.5, 0.25, 0.25, 1.0, 0.25, 0.25, 0.75, 0.75, 0.25, 0.25, 0.25, 1.0, 0.25, 0.5, 1.5, 0.25, 1.0, 0.25,
    0.25, 0.5, 0.25, 0.5, 1.0, 0.25, 0.5, 0.25, 0.5, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25, 8.0,
    8.0, 8.0, 4.0, 2.0, 6.0, 0.25, 5.0, 1.0, 4.0, 2.0, 3.0, 1.5, 5.0, 4.0, 0.25, 3.0, 1.0, 2.0, 1.25, 0.25,
    4.0, 0.5, 3.0, 1.5, 2.0, 2.0, 0.25, 1.0, 1.0, 1.0, 4.0, 3.0, 2.0, 0.25, 1.0, 1.0, 1.0, 3.0, 0.5, 0.25,
    2.0, 2.0, 1.0, 3.5, 0.25, 2.0, 1.0, 0.25, 3.0, 0.25, 2.0, 0.75, 0.25, 1.0, 1.0, 0.75, 0.25, 1.0, 0.75,
    3.0, 2.0, 1.0, 0.25, 0.75, 4.0, 0.5, 2.0, 2.0, 0.5, 4.0, 2.5, 1.0, 1.0, 2.0, 0.25, 0.25, 1.0, 1.0, 0.25,
    0.25, 1.75, 1.0, 1.75, 0.75, 0.5, 2.0, 0.5, 0.25, 1.0, 2.0, 0.25, 0.25, 2.0, 0.5, 1.5, 0.5, 0.25, 2.0,
    0.25, 1.0, 0.75, 0.25, 1.0, 0.25, 0.75, 0.5, 0.25, 2.0, 1.0, 0.5, 0.25, 1.5, 1.0, 0.5, 2.0, 1.0, 0.25,
    0.5, 0.25, 2.0, 0.25, 0.5, 0.5, 1.0, 1.5, 3.0, 0.25, 0.5, 1.0, 0.5, 2.0, 0.25, 0.5, 1.0, 1.5, 0.25, 1.0,
    0.5, 0.25, 0.25, 1.0, 0.25, 0.25, 0.25, 1.25, 0.25, 0.25, 0.75, 0.25, 0.75, 0.25, 0.75, 0.25, 0.5, 1.0,
    0.5, 0.25, 1.5, 0.25, 1.5, 0.5, 0.5, 0.25, 0.25, 0.25, 1.0, 0.25, 0.25, 0.75, 0.75, 0.25, 0.25, 2.0, 0.5,
    0.5, 2.0, 1.5, 0.5, 0.25, 1.0, 0.25, 0.25, 0.75, 0.25, 0.75, 0.25, 1.0, 0.25, 0.25, 1.0, 1.0, 2.0, 1.0,
    1.0, 1.0, 0.5, 0.25, 0.5, 1.0, 0.5, 0.25, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5, 0.5, 0.25, 1.0, 0.5, 0.5, 0.25,
    0.5, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5, 0.5, 0.5, 0.25,
])


def trapezoid(dimension, nodes=97, reach=8.0, drop=1e-16):
    """Trapezoidal rule for the mean over standard normal variables: z (dimension, P), w (P,).

    Nodes a direction up to `reach` standard deviations; points of less than `drop` of the largest weight are left out.
    """
    line = np.linspace(-reach, reach, nodes)
    density = np.exp(-0.5 * line * line)
    density /= density.sum()
    grids = np.meshgrid(*[line] * dimension, indexing="ij")
    weight = np.ones(())
    for _ in range(dimension):
        weight = np.multiply.outer(weight, density)
    keep = weight > drop * weight.max()
    return np.stack([g[keep] for g in grids]), weight[keep] / weight[keep].sum()


class _Rules(dict):
    """Quadrature rules by dimension, made when first asked for."""

    def __missing__(self, dimension):
        if dimension > 4:
            raise ValueError(f"averages over {dimension} variables need a rule for that dimension")
        self[dimension] = trapezoid(dimension, nodes={1: 97, 2: 97, 3: 49}.get(dimension, 25))
        return self[dimension]


_RULES = _Rules()


def _colour(cov, z):
    """u = L z with L L' the covariance given by its lower triangle; NaN where it is not positive."""
    n = z.shape[0]
    lower = [[0.0] * n for _ in range(n)]
    for j in range(n):
        diagonal = cov[j * (j + 1) // 2 + j]
        pivot = diagonal - math.fsum(x * x for x in lower[j][:j])
        if not pivot > -1e-9 * abs(diagonal):
            return np.full_like(z, np.nan)
        # a vanishing pivot: the variable is a combination of the earlier ones
        root = math.sqrt(pivot) if pivot > 1e-15 * diagonal else 0.0
        lower[j][j] = root
        for i in range(j + 1, n):
            rest = cov[i * (i + 1) // 2 + j] - math.fsum(x * y for x, y in zip(lower[i][:j], lower[j][:j]))
            lower[i][j] = rest / root if root else 0.0
    return [sum(lower[i][j] * z[j] for j in range(i + 1)) for i in range(n)]


def _sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _softmax(*x):
    top = np.maximum(0.0, x[0])
    for y in x[1:]:
        top = np.maximum(top, y)
    e = [np.exp(y - top) for y in x] + [np.exp(-top)]
    total = sum(e)
    return [y / total for y in e]


def _powi(x, n):
    return x**n


_erf = np.vectorize(math.erf, otypes=[float])


def _parameter(params, name):
    if params is None or name not in params:
        return PARAMETERS[name]
    value = params[name]
    return value if isinstance(value, float) else np.asarray(value, dtype=float)


def _stack(rows, batch):
    """Rows with the batch axes of the whole, constants spread over them."""
    batch = np.broadcast_shapes(batch, *(np.shape(r) for r in rows))
    out = np.empty((len(rows), *batch))
    for i, row in enumerate(rows):
        out[i] = row
    return out


def _average_couplings_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 2 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((2, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = _sigmoid(p_beta*u1)
        x2 = -1.0 + x1
        x3 = x1*x2
        x4 = 2.0*x3*(p_beta*p_beta)
        x5 = x1 + (-x0)
        out[0, n] = w @ (-x0*x4*(-1.0 + x0))
        out[1, n] = w @ (x4*(x3 + x1*x5 + x2*x5))
    return out.reshape((2, *batch))


def _couplings(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1 = _average_couplings_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            3.0*E0_1,
            3.0*E0_0,
        ),
        q.shape[1:],
    )


def _average_noise_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 1 output."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        out[0, n] = w @ (24.0*(x0*x0)*(p_beta*p_beta)*((1.0 + (-x0))*(1.0 + (-x0)))*((x0 + (-_sigmoid(p_beta*u2)))*(x0 + (-_sigmoid(p_beta*u2)))))
    return out.reshape((1, *batch))


def _average_noise_1(cov, params, rule):
    """Averages over 4 Gaussian variables, 1 output."""
    z, w = rule[4]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3, u4 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = _sigmoid(p_beta*u2)
        out[0, n] = w @ (16.0*x0*x1*(p_beta*p_beta)*(1.0 + (-x0))*(1.0 + (-x1))*(x0 + (-_sigmoid(p_beta*u3)))*(x1 + (-_sigmoid(p_beta*u4))))
    return out.reshape((1, *batch))


def _noise(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, = _average_noise_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, = _average_noise_1(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_2, q_1_2, 3.0*q_2_2, q_1_2, 3.0*q_1_2, q_2_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            E1_0 + 2.0*E0_0,
        ),
        q.shape[1:],
    )


def _average_potential_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 1 output."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((1, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        out[0, n] = w @ (((-_sigmoid(p_beta*u2) + _sigmoid(p_beta*u1))*(-_sigmoid(p_beta*u2) + _sigmoid(p_beta*u1))))
    return out.reshape((1, *batch))


def _potential(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, = _average_potential_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            2.0*E0_0,
        ),
        q.shape[1:],
    )


def _mean_gradient(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _mean_hessian(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    return _stack(
        (
        ),
        q.shape[1:],
    )


def _average_coupling_slopes_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 4 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((4, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u1)
        x1 = -1.0 + x0
        x2 = 2.0*x0
        x3 = x1*x2
        x4 = -1.0 + x2
        x5 = x0*x4
        x6 = x1*x4
        x7 = _sigmoid(p_beta*u2)
        x8 = (p_beta*p_beta*p_beta*p_beta)
        x9 = -1.0 + x7
        x10 = x1*x9
        x11 = x10*x2*x7*x8
        x12 = 2.0*x7
        x13 = -1.0 + x12
        x14 = (x0*x0)
        x15 = -4.0 + (-4.0*x7) + 12.0*x0
        x16 = (x1*x1)
        x17 = x0*x1
        x18 = x0 + (-x7)
        x19 = x0*x18 + x1*x18
        x20 = x17 + x19
        out[0, n] = w @ (-x11*(x3 + x5 + x6))
        out[1, n] = w @ (-x11*(x12*x9 + x13*x7 + x13*x9))
        out[2, n] = w @ (-x11*(x10 + x0*x7 + x0*x9 + x1*x7))
        out[3, n] = w @ (x3*x8*(x20*x3 + x20*x5 + x20*x6 + x3*(x14 + x16 + x19 + 5.0*x17) + x0*x15*x16 + x1*x14*x15))
    return out.reshape((4, *batch))


def _coupling_slopes(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1, E0_2, E0_3 = _average_coupling_slopes_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            4.5*E0_3,
            9.0*E0_0,
            4.5*E0_2,
            4.5*E0_0,
            9.0*E0_2,
            4.5*E0_1,
        ),
        q.shape[1:],
    )


def _average_noise_slopes_0(cov, params, rule):
    """Averages over 2 Gaussian variables, 3 outputs."""
    z, w = rule[2]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((3, cov[0].size))
    for n in range(cov[0].size):
        u1, u2 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = -1.0 + x0
        x2 = x0*x1
        x3 = _sigmoid(p_beta*u1)
        x4 = x3 + (-x0)
        x5 = -1.0 + x3
        x6 = (x5*x5)
        x7 = (x3*x3)
        x8 = 48.0*x6*x7*(p_beta*p_beta*p_beta*p_beta)
        x9 = x2*x8
        x10 = x3*x5
        x11 = x3*x4
        x12 = x4*x5
        x13 = (x4*x4)
        x14 = 3.0*x3
        out[0, n] = w @ (-x9*(-x2 + x0*x4 + x1*x4))
        out[1, n] = w @ (-x9*(x10 + 2.0*x11 + 2.0*x12))
        out[2, n] = w @ (x8*(x10*(x10 + x11 + x12) + 4.0*x10*x13 + 4.0*x11*x6 + 4.0*x12*x7 + x13*x3*(-1.0 + x14) + x13*x5*(-2.0 + x14)))
    return out.reshape((3, *batch))


def _average_noise_slopes_1(cov, params, rule):
    """Averages over 4 Gaussian variables, 10 outputs."""
    z, w = rule[4]
    batch = np.broadcast_shapes(*(np.shape(c) for c in cov), *(np.shape(x) for x in params))
    cov = [np.broadcast_to(np.asarray(c, dtype=float), batch).ravel() for c in cov]
    params = [np.broadcast_to(np.asarray(x, dtype=float), batch).ravel() for x in params]
    out = np.empty((10, cov[0].size))
    for n in range(cov[0].size):
        u1, u2, u3, u4 = _colour([c[n] for c in cov], z)
        p_beta, = (x[n] for x in params)
        x0 = _sigmoid(p_beta*u2)
        x1 = -1.0 + x0
        x2 = x0*x1
        x3 = _sigmoid(p_beta*u1)
        x4 = -1.0 + x3
        x5 = x3*x4
        x6 = x2*x5
        x7 = 16.0*(p_beta*p_beta*p_beta*p_beta)
        x8 = x6*x7
        x9 = _sigmoid(p_beta*u3)
        x10 = x9*(-1.0 + x9)
        x11 = x10*x8
        x12 = _sigmoid(p_beta*u4)
        x13 = x12*(-1.0 + x12)
        x14 = x0 + (-x12)
        x15 = x1*x14
        x16 = 2.0*x3
        x17 = -1.0 + x16
        x18 = x17*x5
        x19 = x0*x7
        x20 = x3 + (-x9)
        x21 = x20*x4
        x22 = 2.0*x0
        x23 = -1.0 + x22
        x24 = x2*x23
        x25 = x3*x7
        x26 = x2*x21
        x27 = x25*x26
        x28 = x15*x5
        x29 = x19*x28
        x30 = x0*x14
        x31 = x20*x3
        out[0, n] = w @ (x11*x13)
        out[1, n] = w @ (-x10*x15*x18*x19)
        out[2, n] = w @ (-x13*x21*x24*x25)
        out[3, n] = w @ (-x13*x27*(-1.0 + 2.0*x12))
        out[4, n] = w @ (-x10*x29*(-1.0 + 2.0*x9))
        out[5, n] = w @ (-x11*(x15 + x2 + x30))
        out[6, n] = w @ (-x13*x8*(x21 + x31 + x5))
        out[7, n] = w @ (x27*(x24 + x15*x22 + x15*x23 + x22*(x1*x1) + x23*x30 + 2.0*x1*(x0*x0)))
        out[8, n] = w @ (x29*(x18 + x16*x21 + x16*(x4*x4) + x17*x21 + x17*x31 + 2.0*x4*(x3*x3)))
        out[9, n] = w @ (x8*(x26 + x28 + x6 + x15*x21 + x15*x31 + x2*x31 + x21*x30 + x30*x31 + x30*x5))
    return out.reshape((10, *batch))


def _noise_slopes(q, params, rule):
    q_1_1, q_1_2, q_2_2 = q
    p_beta = _parameter(params, "beta")
    E0_0, E0_1, E0_2 = _average_noise_slopes_0(
        (3.0*q_1_1, 3.0*q_1_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    E1_0, E1_1, E1_2, E1_3, E1_4, E1_5, E1_6, E1_7, E1_8, E1_9 = _average_noise_slopes_1(
        (3.0*q_1_1, q_1_1, 3.0*q_1_1, 3.0*q_1_2, q_1_2, 3.0*q_2_2, q_1_2, 3.0*q_1_2, q_2_2, 3.0*q_2_2),
        (p_beta,),
        _RULES if rule is None else rule,
    )
    return _stack(
        (
            E1_9 + 3.0*E0_2 + 1.5*E1_7 + 1.5*E1_8,
            E1_5 + E1_6 + 3.0*E1_1 + 3.0*E1_2 + 6.0*E0_1,
            E1_0 + 3.0*E0_0 + 1.5*E1_3 + 1.5*E1_4,
        ),
        q.shape[1:],
    )


def order_parameters(mu):
    """Rows of `mu` (K, ...) that are the ARGUMENTS of couplings, order parameters first: (Q, ...)."""
    return np.asarray(mu)[_Q]


def couplings(q, params=None, rule=None):
    """Couplings (C, ...) named in COUPLINGS at order parameters q (Q, ...)."""
    return _couplings(np.asarray(q, dtype=float), params, rule)


def noise_contractions(q, params=None, rule=None):
    """Noise contractions named in NOISE at order parameters q (Q, ...)."""
    return _noise(np.asarray(q, dtype=float), params, rule)


def coupling_slopes(q, params=None, rule=None):
    """Derivatives (C * Q, ...) of the couplings with respect to the order parameters, row by row."""
    return _coupling_slopes(np.asarray(q, dtype=float), params, rule)


def potential(q, params=None, rule=None):
    """Population loss Phi at order parameters q (Q, ...)."""
    return _potential(np.asarray(q, dtype=float), params, rule)[0]


def mean_gradient(q, params=None, rule=None):
    """dPhi/dm of the students among MEANS, at means given as parameters ``m_<letter>``."""
    return _mean_gradient(np.asarray(q, dtype=float), params, rule)


def mean_hessian(q, params=None, rule=None):
    """Second derivatives of Phi in those means, row by row."""
    return _mean_hessian(np.asarray(q, dtype=float), params, rule)


def _coefficients(names, known, values, params, batch):
    table = dict(zip(known, values))
    return _stack([table[n] if n in table else _parameter(params, n) for n in names], batch)


def _accumulate(out, row, values):
    """out[row] += values, the rows sorted."""
    if len(row):
        start = np.flatnonzero(np.diff(row, prepend=-1))
        out[row[start]] += np.add.reduceat(values, start, axis=0)


def _extended(mu, boundary):
    outer = np.zeros((len(BOUNDARY), *mu.shape[1:])) if boundary is None else np.asarray(boundary, dtype=float)
    return np.concatenate([mu, outer, np.ones((1, *mu.shape[1:]))])


def _column(weight, mu):
    return weight.reshape(-1, *[1] * (mu.ndim - 1))


def _add_loops(out, mu, kappa, params, rule):
    """Loop terms, proportional to kappa."""
    n = _coefficients(_LOOP_NAMES, NOISE, noise_contractions(mu[_Q], params, rule), params, mu.shape[1:])
    full = _extended(mu, None)
    values = _column(_LOOP_WEIGHT, mu) * n[_LOOP_COEFFICIENT] * full[_LOOP_FIRST] * full[_LOOP_SECOND] * kappa
    _accumulate(out, _LOOP_ROW, values)


def rhs(t, mu, params=None, out=None, boundary=None, rule=None):
    """Time derivative of the moments.

    Parameters
    ----------
    t : float
        Not used: the equations are autonomous.
    mu : (K, ...) array
        Moments in the order of WORDS; any trailing batch axes.
    params : mapping, optional
        Values of PARAMETERS, scalars or arrays over the batch axes.
    out : (K, ...) array, optional
    boundary : (len(BOUNDARY), ...) array, optional
        Moments of the next order; zero if not given.
    rule : mapping of dimension to (z, w), optional
        Quadrature rules, see `trapezoid`.

    Returns
    -------
    (K, ...) array
    """
    mu = np.asarray(mu, dtype=float)
    if mu.shape[0] != 84:
        raise ValueError(f"mu has {mu.shape[0]} rows; accepted: 84, one for each of WORDS")
    if out is None:
        out = np.empty_like(mu)
    c = _coefficients(_DRIFT_NAMES, COUPLINGS, couplings(mu[_Q], params, rule), params, mu.shape[1:])
    c0, c1, c2 = c
    out[0] = c0*(-2.0*mu[2]) + c1*(-2.0*mu[3]) + c2*(-0.5*mu[0])
    out[1] = 0.0
    out[2] = c0*(-4.0*mu[5]) + c1*(-4.0*mu[6]) + c2*(-1.0*mu[2])
    out[3] = c0*(-2.0*mu[6]) + c1*(-2.0*mu[7]) + c2*(-0.5*mu[3])
    out[4] = 0.0
    out[5] = c0*(-6.0*mu[9]) + c1*(-6.0*mu[10]) + c2*(-1.5*mu[5])
    out[6] = c0*(-4.0*mu[10]) + c1*(-2.0*mu[11] - 2.0*mu[12]) + c2*(-1.0*mu[6])
    out[7] = c0*(-2.0*mu[11]) + c1*(-2.0*mu[13]) + c2*(-0.5*mu[7])
    out[8] = 0.0
    out[9] = c0*(-8.0*mu[15]) + c1*(-8.0*mu[16]) + c2*(-2.0*mu[9])
    out[10] = c0*(-6.0*mu[16]) + c1*(-2.0*mu[17] - 4.0*mu[18]) + c2*(-1.5*mu[10])
    out[11] = c0*(-4.0*mu[17]) + c1*(-2.0*mu[19] - 2.0*mu[20]) + c2*(-1.0*mu[11])
    out[12] = c0*(-4.0*mu[18]) + c1*(-4.0*mu[20]) + c2*(-1.0*mu[12])
    out[13] = c0*(-2.0*mu[19]) + c1*(-2.0*mu[21]) + c2*(-0.5*mu[13])
    out[14] = 0.0
    out[15] = c0*(-10.0*mu[23]) + c1*(-10.0*mu[24]) + c2*(-2.5*mu[15])
    out[16] = c0*(-8.0*mu[24]) + c1*(-2.0*mu[25] - 4.0*mu[26] - 2.0*mu[28]) + c2*(-2.0*mu[16])
    out[17] = c0*(-6.0*mu[25]) + c1*(-2.0*mu[27] - 4.0*mu[29]) + c2*(-1.5*mu[17])
    out[18] = c0*(-4.0*mu[26] - 2.0*mu[28]) + c1*(-4.0*mu[29] - 2.0*mu[31]) + c2*(-1.5*mu[18])
    out[19] = c0*(-4.0*mu[27]) + c1*(-2.0*mu[30] - 2.0*mu[32]) + c2*(-1.0*mu[19])
    out[20] = c0*(-4.0*mu[29]) + c1*(-2.0*mu[32] - 2.0*mu[33]) + c2*(-1.0*mu[20])
    out[21] = c0*(-2.0*mu[30]) + c1*(-2.0*mu[34]) + c2*(-0.5*mu[21])
    out[22] = 0.0
    out[23] = c0*(-12.0*mu[36]) + c1*(-12.0*mu[37]) + c2*(-3.0*mu[23])
    out[24] = c0*(-10.0*mu[37]) + c1*(-2.0*mu[38] - 4.0*mu[39] - 4.0*mu[41]) + c2*(-2.5*mu[24])
    out[25] = c0*(-8.0*mu[38]) + c1*(-2.0*mu[40] - 4.0*mu[42] - 2.0*mu[44]) + c2*(-2.0*mu[25])
    out[26] = c0*(-6.0*mu[39] - 2.0*mu[41]) + c1*(-4.0*mu[42] - 4.0*mu[45]) + c2*(-2.0*mu[26])
    out[27] = c0*(-6.0*mu[40]) + c1*(-2.0*mu[43] - 4.0*mu[46]) + c2*(-1.5*mu[27])
    out[28] = c0*(-8.0*mu[41]) + c1*(-4.0*mu[44] - 4.0*mu[45]) + c2*(-2.0*mu[28])
    out[29] = c0*(-4.0*mu[42] - 2.0*mu[44]) + c1*(-2.0*mu[46] - 2.0*mu[47] - 2.0*mu[49]) + c2*(-1.5*mu[29])
    out[30] = c0*(-4.0*mu[43]) + c1*(-2.0*mu[48] - 2.0*mu[50]) + c2*(-1.0*mu[30])
    out[31] = c0*(-6.0*mu[45]) + c1*(-6.0*mu[49]) + c2*(-1.5*mu[31])
    out[32] = c0*(-4.0*mu[46]) + c1*(-2.0*mu[50] - 2.0*mu[51]) + c2*(-1.0*mu[32])
    out[33] = c0*(-4.0*mu[47]) + c1*(-4.0*mu[51]) + c2*(-1.0*mu[33])
    out[34] = c0*(-2.0*mu[48]) + c1*(-2.0*mu[52]) + c2*(-0.5*mu[34])
    out[35] = 0.0
    out[36] = c0*(-14.0*mu[54]) + c1*(-14.0*mu[55]) + c2*(-3.5*mu[36])
    out[37] = c0*(-12.0*mu[55]) + c1*(-2.0*mu[56] - 4.0*mu[57] - 4.0*mu[59] - 2.0*mu[62]) + c2*(-3.0*mu[37])
    out[38] = c0*(-10.0*mu[56]) + c1*(-2.0*mu[58] - 4.0*mu[60] - 4.0*mu[63]) + c2*(-2.5*mu[38])
    out[39] = c0*(-8.0*mu[57] - 2.0*mu[59]) + c1*(-4.0*mu[60] - 4.0*mu[64] - 2.0*mu[68]) + c2*(-2.5*mu[39])
    out[40] = c0*(-8.0*mu[58]) + c1*(-2.0*mu[61] - 4.0*mu[65] - 2.0*mu[69]) + c2*(-2.0*mu[40])
    out[41] = c0*(-6.0*mu[59] - 4.0*mu[62]) + c1*(-4.0*mu[63] - 2.0*mu[64] - 4.0*mu[68]) + c2*(-2.5*mu[41])
    out[42] = c0*(-6.0*mu[60] - 2.0*mu[63]) + c1*(-2.0*mu[65] - 2.0*mu[66] - 2.0*mu[70] - 2.0*mu[71]) + c2*(-2.0*mu[42])
    out[43] = c0*(-6.0*mu[61]) + c1*(-2.0*mu[67] - 4.0*mu[72]) + c2*(-1.5*mu[43])
    out[44] = c0*(-8.0*mu[63]) + c1*(-2.0*mu[69] - 4.0*mu[70] - 2.0*mu[73]) + c2*(-2.0*mu[44])
    out[45] = c0*(-4.0*mu[64] - 4.0*mu[68]) + c1*(-4.0*mu[70] - 2.0*mu[71] - 2.0*mu[76]) + c2*(-2.0*mu[45])
    out[46] = c0*(-4.0*mu[65] - 2.0*mu[69]) + c1*(-2.0*mu[72] - 2.0*mu[74] - 2.0*mu[77]) + c2*(-1.5*mu[46])
    out[47] = c0*(-4.0*mu[66] - 2.0*mu[73]) + c1*(-4.0*mu[74] - 2.0*mu[78]) + c2*(-1.5*mu[47])
    out[48] = c0*(-4.0*mu[67]) + c1*(-2.0*mu[75] - 2.0*mu[79]) + c2*(-1.0*mu[48])
    out[49] = c0*(-4.0*mu[70] - 2.0*mu[71]) + c1*(-2.0*mu[77] - 4.0*mu[78]) + c2*(-1.5*mu[49])
    out[50] = c0*(-4.0*mu[72]) + c1*(-2.0*mu[79] - 2.0*mu[80]) + c2*(-1.0*mu[50])
    out[51] = c0*(-4.0*mu[74]) + c1*(-2.0*mu[80] - 2.0*mu[81]) + c2*(-1.0*mu[51])
    out[52] = c0*(-2.0*mu[75]) + c1*(-2.0*mu[82]) + c2*(-0.5*mu[52])
    out[53] = 0.0
    out[54] = c2*(-4.0*mu[54])
    out[55] = c2*(-3.5*mu[55])
    out[56] = c2*(-3.0*mu[56])
    out[57] = c2*(-3.0*mu[57])
    out[58] = c2*(-2.5*mu[58])
    out[59] = c2*(-3.0*mu[59])
    out[60] = c2*(-2.5*mu[60])
    out[61] = c2*(-2.0*mu[61])
    out[62] = c2*(-3.0*mu[62])
    out[63] = c2*(-2.5*mu[63])
    out[64] = c2*(-2.5*mu[64])
    out[65] = c2*(-2.0*mu[65])
    out[66] = c2*(-2.0*mu[66])
    out[67] = c2*(-1.5*mu[67])
    out[68] = c2*(-2.5*mu[68])
    out[69] = c2*(-2.0*mu[69])
    out[70] = c2*(-2.0*mu[70])
    out[71] = c2*(-2.0*mu[71])
    out[72] = c2*(-1.5*mu[72])
    out[73] = c2*(-2.0*mu[73])
    out[74] = c2*(-1.5*mu[74])
    out[75] = c2*(-1.0*mu[75])
    out[76] = c2*(-2.0*mu[76])
    out[77] = c2*(-1.5*mu[77])
    out[78] = c2*(-1.5*mu[78])
    out[79] = c2*(-1.0*mu[79])
    out[80] = c2*(-1.0*mu[80])
    out[81] = c2*(-1.0*mu[81])
    out[82] = c2*(-0.5*mu[82])
    out[83] = 0.0
    if boundary is not None:
        far = (_DRIFT_FIRST >= 84) & (_DRIFT_FIRST < 129)
        full = _extended(mu, boundary)
        values = _column(_DRIFT_WEIGHT[far], mu) * c[_DRIFT_COEFFICIENT[far]] * full[_DRIFT_FIRST[far]]
        _accumulate(out, _DRIFT_ROW[far], values)
    kappa = _parameter(params, "kappa")
    if np.any(kappa):
        _add_loops(out, mu, kappa, params, rule)
    return out


def _table_jacobian(label, coefficients, slopes, names, mu, scale, full, jac):
    """Adds the derivative of one table of terms: through its factors, and through its coefficients."""
    row, which, first, second, weight = label
    size = mu.shape[0]
    bare = _column(weight, mu) * scale
    for here, other in ((first, second), (second, first)):
        inside = here < size
        np.add.at(jac, (row[inside], here[inside]), (bare * coefficients[which] * full[other])[inside])
    through = bare * full[first] * full[second]
    for i, name in enumerate(names):
        n = slopes.get(name)
        if n is None:
            continue
        chosen = which == i
        part = np.zeros_like(mu)
        np.add.at(part, row[chosen], through[chosen])
        for k, column in enumerate(_Q):
            jac[:, column] += part * n[k]


def jacobian(t, mu, params=None, rule=None):
    """Derivative of `rhs` (boundary zero) with respect to mu: (K, K, ...), row by column."""
    mu = np.asarray(mu, dtype=float)
    q, size = mu[_Q], len(_Q)
    jac = np.zeros((len(mu), *mu.shape))
    full = _extended(mu, None)
    tables = [(1.0, COUPLINGS, couplings, _coupling_slopes, _DRIFT_NAMES,
               (_DRIFT_ROW, _DRIFT_COEFFICIENT, _DRIFT_FIRST, _DRIFT_SECOND, _DRIFT_WEIGHT))]
    kappa = _parameter(params, "kappa")
    if np.any(kappa):
        tables.append((kappa, NOISE, noise_contractions, _noise_slopes, _LOOP_NAMES,
                       (_LOOP_ROW, _LOOP_COEFFICIENT, _LOOP_FIRST, _LOOP_SECOND, _LOOP_WEIGHT)))
    for scale, known, values, slopes, names, table in tables:
        c = _coefficients(names, known, values(q, params, rule), params, mu.shape[1:])
        slope = slopes(q, params, rule)
        by_name = {n: slope[i * size : (i + 1) * size] for i, n in enumerate(known)}
        _table_jacobian(table, c, by_name, names, mu, scale, full, jac)
    return jac


def loss(h, params=None, traces=None):
    """Per-sample loss at pre-activations h (H, ...), in the order of PREACTIVATIONS, and traces in that of TRACES."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    p_beta = _parameter(params, "beta")

    return ((-_sigmoid(p_beta*h5 + (-p_beta*h4)) + _sigmoid(p_beta*h1 + (-p_beta*h0)))*(-_sigmoid(p_beta*h5 + (-p_beta*h4)) + _sigmoid(p_beta*h1 + (-p_beta*h0)))) + ((-_sigmoid(p_beta*h6 + (-p_beta*h7)) + _sigmoid(p_beta*h2 + (-p_beta*h3)))*(-_sigmoid(p_beta*h6 + (-p_beta*h7)) + _sigmoid(p_beta*h2 + (-p_beta*h3))))


def loss_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each pre-activation: (H, ...), in the precision of h."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    p_beta = _parameter(params, "beta")
    x0 = _sigmoid(p_beta*h1 + (-p_beta*h0))
    x1 = _sigmoid(p_beta*h5 + (-p_beta*h4))
    x2 = 2.0*p_beta
    x3 = x2*(x0 + (-x1))
    x4 = x0*x3*(1.0 + (-x0))
    x5 = _sigmoid(p_beta*h2 + (-p_beta*h3))
    x6 = _sigmoid(p_beta*h6 + (-p_beta*h7))
    x7 = x2*(x5 + (-x6))
    x8 = x5*x7*(1.0 + (-x5))
    x9 = x1*x3*(1.0 + (-x1))
    x10 = x6*x7*(1.0 + (-x6))

    out = np.empty_like(h)
    out[0] = -x4
    out[1] = x4
    out[2] = x8
    out[3] = -x8
    out[4] = x9
    out[5] = -x9
    out[6] = -x10
    out[7] = x10
    return out


def trace_gradient(h, params=None, traces=None):
    """Derivative of `loss` with respect to each of TRACES: (T, ...)."""
    h = np.asarray(h)
    h0 = h[0]
    h1 = h[1]
    h2 = h[2]
    h3 = h[3]
    h4 = h[4]
    h5 = h[5]
    h6 = h[6]
    h7 = h[7]
    p_beta = _parameter(params, "beta")

    out = np.empty((0, *h.shape[1:]), dtype=h.dtype)
    return out
