"""Formats of Spanish as in Mexico and the United States: short dates, a decimal point, and the inputs of English.

Attributes of pages, such as positions in percent, need the point as well, and date inputs need ISO dates.
"""

from django.conf.locale.en import formats as english

DATE_FORMAT = "j M Y"
DATETIME_FORMAT = "j M Y, H:i"
DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
DATE_INPUT_FORMATS = english.DATE_INPUT_FORMATS
TIME_INPUT_FORMATS = english.TIME_INPUT_FORMATS
DATETIME_INPUT_FORMATS = english.DATETIME_INPUT_FORMATS
