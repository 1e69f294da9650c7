"""Pictures of other formats, read losslessly so that they can become PSI, and written back.

PNG, WebP and JPEG are read by penstock's own decoders, ``.npy`` by NumPy. The rest needs a library that the user has:
TIFF tifffile (every depth and number of pages; what is compressed in unusual ways needs its imagecodecs) or else Pillow
(8 bits in colour, 8 and 16 in grey); BMP Pillow; DICOM pydicom.
"""

from penstock.psi.pictures.contract import EXTENSIONS, Picture, foreign_extension
from penstock.psi.pictures.reading import of_array, read
from penstock.psi.pictures.writing import WRITABLE, write

__all__ = ["EXTENSIONS", "WRITABLE", "Picture", "foreign_extension", "of_array", "read", "write"]
